//! The first seeds of each kind under faults. More of them: `cargo xtask seeds 10000`.

use tidegate_sim::seeds::{Kind, check, violations};

/// Runs the first seeds, and fails with all that was violated.
#[track_caller]
fn all_hold(kind: Kind, count: u64) {
    let found = violations(kind, 0..count);
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn clusters_keep_their_promises() {
    all_hold(Kind::Cluster, 300);
}

/// Six of a client's seven requests come to a node before its plan.
#[test]
fn requests_from_before_a_plan_keep_no_client_from_its_reservation() {
    for kind in [Kind::Cluster, Kind::Bytes] {
        assert_eq!(check(kind, 9861).err(), None);
    }
}

#[test]
fn clusters_keep_their_promises_in_bytes() {
    all_hold(Kind::Bytes, 100);
}

#[test]
fn no_fault_creates_a_token_and_reservations_are_met_after_it() {
    all_hold(Kind::Storm, 16);
}

/// A node that dies has served operations since its last report, of a tenant without a limit. In
/// seed 266 another node's first message on a new connection is of the period before.
#[test]
fn a_reservation_is_not_given_out_twice_when_a_node_dies() {
    for seed in [150, 266, 864] {
        assert_eq!(check(Kind::Storm, seed).err(), None);
    }
}

#[test]
fn bricks_stay_fair() {
    all_hold(Kind::Bricks, 30);
}

#[test]
fn one_sided_clients_have_what_they_are_promised() {
    all_hold(Kind::OneSided, 300);
}

#[test]
fn shares_of_data_nodes_add_up_to_what_is_promised() {
    all_hold(Kind::DataNodes, 25);
}

/// A node that has no limit yet is told of one, of less, and of more again, while the others have
/// the rest; and grants of two periods wait to come into force.
#[test]
fn a_share_that_falls_and_rises_again_is_not_given_out_twice() {
    for seed in [49, 84, 976] {
        assert_eq!(check(Kind::DataNodes, seed).err(), None);
    }
}

/// A controller that has just started gives a new process its first limit while another node's
/// limit is falling.
#[test]
fn a_first_limit_waits_for_those_that_fall() {
    assert_eq!(check(Kind::DataNodes, 890).err(), None);
}

/// A share changes a little in every round, and each time its node confirms a grant just after the
/// next one was sent.
#[test]
fn a_share_that_changes_in_every_round_leaves_no_reservation_at_no_node() {
    assert_eq!(check(Kind::DataNodes, 2160).err(), None);
}

#[test]
fn hosts_have_no_more_than_the_capacity_and_what_they_are_promised() {
    all_hold(Kind::Stages, 200);
}

#[test]
fn a_seed_is_a_run() {
    for kind in Kind::ALL {
        assert_eq!(check(kind, 5), check(kind, 5));
        assert_ne!(check(kind, 5), check(kind, 6));
    }
}

#[test]
fn a_kind_has_one_name() {
    Kind::ALL.iter().for_each(|kind| assert_eq!(Kind::named(&kind.to_string()), Some(*kind)));
}
