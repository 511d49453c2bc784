use super::*;
use alloc::format;
use alloc::string::ToString;
use proptest::prelude::*;

const RESOURCES: &str = r#"
    [[resource]]
    name = "cluster"
    capacity = "100 iops"
    [[resource]]
    name = "files"
    path = ["/srv/**", "/scratch/**"]
    capacity = ["100 iops", "1GiB/s"]
    [[resource]]
    name = "memory"
    data_nodes = ["m"]
    capacity = "100 iops"
"#;

fn error(text: &str) -> String {
    Policy::parse(text).unwrap_err().to_string()
}

fn infeasible(text: &str) -> String {
    let found = Policy::parse(&format!("{RESOURCES}{text}")).unwrap().feasible();
    found.map_or_else(|error| error.to_string(), |()| "fits".into())
}

#[test]
fn a_promise_is_of_one_resource() {
    let policy = Policy::parse(&format!(
        r#"{RESOURCES}
        [[group]]
        name = "all"
        weight = 7
        on.cluster = {{ limit = "95 iops" }}
        [[tenant]]
        name = "oltp"
        weight = 300
        group = "all"
        [tenant.on.cluster]
        reservation = "90 iops"
        limit = ["2MiB/s", "95 iops"]
        [tenant.on.files]
        limit = "1MiB/s"
        weight = 5
        [[tenant]]
        name = "web"
        "#
    ))
    .unwrap();
    let nodes = policy.at(GateKind::Node);
    assert_eq!(nodes.budget.operations, Some(Iops(100)));
    let [oltp, web] = &nodes.tenants[..] else { panic!() };
    assert_eq!(oltp.reservation.operations, Some(Iops(90)));
    assert_eq!(oltp.limit.get(Unit::Bytes), Some(2 << 20));
    assert_eq!((oltp.weight, web.weight), (300, Policy::WEIGHT));
    assert_eq!(nodes.group_of(oltp).unwrap().promise.limit.operations, Some(Iops(95)));
    assert_eq!(nodes.group_of(oltp).unwrap().promise.weight, 7);
    assert!(nodes.group_of(web).is_none());

    let stages = policy.at(GateKind::Stage);
    assert_eq!(stages.budget.bandwidth, Some(Rate(1 << 30)));
    assert_eq!(stages.stage_paths(), ["/srv/**", "/scratch/**"]);
    assert_eq!(stages.tenants[0].limit.bandwidth, Some(Rate(1 << 20)));
    assert_eq!((stages.tenants[0].limit.operations, stages.tenants[0].weight), (None, 5));
    assert_eq!(stages.groups[0].promise.limit, Levels::default());
    assert_eq!((nodes.reserved(Unit::Operations), stages.reserved(Unit::Operations)), (90, 0));

    let memory = policy.at(GateKind::DataNode);
    assert_eq!(memory.tenants[0].reservation, Levels::default());
    assert_eq!(memory.resource_at(GateKind::DataNode).unwrap().name, "memory");
    assert_eq!(memory.resource_at(GateKind::Node), None);
    for gate in GateKind::ALL {
        assert_eq!(policy.at(gate).at(gate), policy.at(gate), "{gate} see nothing else");
    }
}

#[test]
fn errors_of_resources_name_the_line_the_field_and_the_fix() {
    let with = |more: &str| error(&format!("{RESOURCES}{more}"));
    let cases = [
        (
            with("[[resource]]\nname = \"other\""),
            "line 14, column 8: resource: cluster and other are both guarded by storage nodes, \
             which divide one capacity; make one resource of them",
        ),
        (with("[[resource]]\nname = \"files\""), "line 14, column 8: name: \"files\" is taken"),
        (
            error("[[resource]]\nname = \"a\"\ncapacity = \"measured\""),
            "line 3, column 12: capacity: only that of files is measured for the policy; leave",
        ),
        (
            error("[[resource]]\nname = \"a\"\npath = \"/a/**\"\nlatency = \"p99 < 5ms\""),
            "line 4, column 11: latency: it bounds the search for a capacity, and this one is \
             stated; write capacity = \"measured\" beside it",
        ),
        (
            error(&measured("capacity = [\"measured\", \"1GiB/s\"]")),
            "line 4, column 12: capacity: a measured one is found in operations and in bytes",
        ),
        (
            error(&measured("capacity = \"mesured\"")),
            "line 4, column 12: capacity: \"mesured\" does not start with a number; write it like \
             \"150MiB/s\" or \"30k iops\", or \"measured\"",
        ),
        (
            error(&measured("capacity = \"measured\"\nlatency = \"p50 < 5ms\"")),
            "line 5, column 11: latency: \"p50 < 5ms\" is no bound of 99 in 100; write it like",
        ),
        (
            error(&measured("capacity = \"measured\"\nlatency = \"p99 < 5us\"")),
            "line 5, column 11: latency: 5us is less than 200us; no queue of this length",
        ),
        (
            error("[[resource]]\nname = \"a\"\npath = \"/srv/*.db\""),
            "line 3, column 8: path: \"/srv/*.db\" is no folder with everything below it; write",
        ),
        (error("[[resource]]\nname = \"a\"\npath = []"), "path: an empty list covers nothing"),
        (
            error("[[resource]]\nname = \"a\"\ndata_nodes = []"),
            "line 3, column 14: data_nodes: an empty list covers nothing; name the data nodes",
        ),
        (
            error("[[resource]]\nname = \"a\"\npath = \"/a/**\"\ndata_nodes = \"m\""),
            "line 4, column 14: data_nodes: a is of files already; make two resources of it",
        ),
        (
            error("account = \"device\"\n[[resource]]\nname = \"a\"\npath = \"/a/**\""),
            "line 4, column 8: path: account = \"device\" counts what a program moves on all",
        ),
    ];
    assert_messages(&cases);
}

/// A resource of files with these fields.
fn measured(fields: &str) -> String {
    format!("[[resource]]\nname = \"a\"\npath = \"/a/**\"\n{fields}")
}

#[test]
fn a_measured_capacity_is_found_within_a_bound_of_latency() {
    let policy = |latency: &str| {
        let fields = format!("capacity = \"measured\"{latency}\n[[tenant]]\nname = \"kv\"");
        Policy::parse(&measured(&fields)).unwrap()
    };
    let bounds = [("", Resource::MEASURED_LATENCY), ("\nlatency = \"p99<5ms\"", MS5)];
    for (latency, bound) in bounds {
        let policy = policy(latency);
        assert_eq!(policy.measured_at(GateKind::Stage), Some(bound));
        assert_eq!(policy.measured_at(GateKind::Node), None);
        assert_eq!(policy.resources[0].capacity, Levels::default(), "any reservation fits it");
        let stages = policy.at(GateKind::Stage);
        assert_eq!(stages.budget, Resource::MEASURED_START);
        let units: Vec<Unit> = stages.buckets(&stages.tenants[0]).collect();
        assert_eq!(units, [Unit::Bytes, Unit::Operations]);
    }
}

const MS5: Span = Span(5 * Span::MILLISECOND.0);

#[test]
fn errors_of_promises_name_the_line_the_field_and_the_fix() {
    let with = |more: &str| error(&format!("{RESOURCES}{more}"));
    let tenant = "[[tenant]]\nname = \"kv\"\n";
    let cases = [
        (
            with(&format!("{tenant}on.clutser = {{ limit = \"1 iops\" }}")),
            "line 15, column 4: on: no resource is \"clutser\"; did you mean \"cluster\"?",
        ),
        (
            error(&format!("{tenant}on.cluster = {{ limit = \"1 iops\" }}")),
            "line 3, column 4: on: no resource is \"cluster\"; add [[resource]] with name = \"clus",
        ),
        (
            with(&format!("{tenant}reservation = \"9 iops\"")),
            "line 15, column 15: reservation: it does not say of which resource kv has it; write \
             it under [tenant.on.cluster]",
        ),
        (
            with("[[group]]\nname = \"g\"\nlimit = \"9 iops\""),
            "line 15, column 9: limit: it does not say of which resource g has it; write it under \
             [group.on.cluster]",
        ),
        (
            error(&format!("budget = \"9 iops\"{RESOURCES}")),
            "line 1, column 10: budget: a policy with a [[resource]] has none; write it as the",
        ),
        (
            with(&format!("{tenant}on.files = {{ reservation = \"2B/s\", limit = \"1B/s\" }}")),
            "line 15, column 28: reservation: kv is promised 2B/s, more than its limit 1B/s",
        ),
        (
            with(&format!("{tenant}on.files = {{ wieght = 1 }}")),
            "line 15, column 14: unknown field `wieght`, expected one of",
        ),
        (
            with(&format!("{tenant}group = \"g\"")),
            "line 15, column 9: group: none is \"g\"; add [[group]] with name = \"g\"",
        ),
        (
            with(&format!("{tenant}[[match]]\ntenant = \"kv\"\npath = \"/var/**\"")),
            "line 17, column 8: path: \"/var/**\" matches files outside of the folders of files, \
             where its gates hold nothing; begin it with one of these folders, like \"/srv/**\"",
        ),
    ];
    assert_messages(&cases);
}

#[track_caller]
fn assert_messages(cases: &[(String, &str)]) {
    for (got, wanted) in cases {
        assert!(got.contains(wanted), "{got}\n  should contain\n{wanted}");
    }
}

#[test]
fn all_errors_are_reported_once() {
    let text =
        "[[resource]]\nname = \"a b\"\n[[tenant]]\nname = \"kv\"\non.\"a b\" = { weight = 0 }";
    let errors = Policy::parse_all(text).unwrap_err();
    let messages: Vec<_> = errors.iter().map(|error| &error.message[..]).collect();
    assert_eq!(messages, ["name: \"a b\" is no name for a resource", "weight: 0 is out of range"]);
}

/// Three capacities of 100 do not keep 90 three times for one promise, but for three.
#[test]
fn reservations_are_admitted_against_their_own_resource() {
    let oltp = "[[tenant]]\nname = \"oltp\"\non.cluster = { reservation = \"90 iops\" }\n";
    let web =
        |on: &str| format!("[[tenant]]\nname = \"web\"\non.{on} = {{ reservation = \"20 iops\" }}");
    assert_eq!(infeasible(&format!("{oltp}{}", web("files"))), "fits");
    assert_eq!(infeasible(&format!("{oltp}{}", web("memory"))), "fits");
    assert_eq!(
        infeasible(&format!("{oltp}{}", web("cluster"))),
        "reservations of 110 iops on cluster do not fit its capacity, 100 iops: oltp with 90 iops \
         and web with 20 iops; lower a reservation or raise the capacity"
    );
}

#[test]
fn the_promises_of_tenants_are_inside_their_groups() {
    let group = |own: &str, a: u32, b: u32| {
        infeasible(&format!(
            "[[group]]\nname = \"g\"\non.files = {{ {own} }}\n\
             [[tenant]]\nname = \"a\"\ngroup = \"g\"\non.files = {{ reservation = \"{a} iops\" }}\n\
             [[tenant]]\nname = \"b\"\ngroup = \"g\"\non.files = {{ reservation = \"{b} iops\" }}\n\
             [[tenant]]\nname = \"c\"\non.files = {{ reservation = \"30 iops\" }}\n"
        ))
    };
    assert_eq!(group("reservation = \"70 iops\"", 40, 30), "fits");
    assert_eq!(
        group("reservation = \"70 iops\"", 40, 31),
        "reservations of 71 iops on files do not fit the reservation of group g, 70 iops: a with \
         40 iops and b with 31 iops; lower a tenant's reservation or raise the group's"
    );
    assert_eq!(
        group("limit = \"70 iops\"", 40, 31),
        "reservations of 71 iops on files do not fit the limit of group g, 70 iops: a with 40 iops \
         and b with 31 iops; lower a tenant's reservation or raise the group's limit"
    );
    // Of the resource the group has what it is promised, whatever its tenants are.
    assert_eq!(
        group("reservation = \"71 iops\"", 1, 2),
        "reservations of 101 iops on files do not fit its capacity, 100 iops: c with 30 iops and g \
         with 71 iops; lower a reservation or raise the capacity"
    );
    // Without a reservation of the group, its tenants are parts of the resource themselves.
    assert_eq!(
        group("weight = 7", 40, 31),
        "reservations of 101 iops on files do not fit its capacity, 100 iops: c with 30 iops, a \
         with 40 iops and b with 31 iops; lower a reservation or raise the capacity"
    );
    // Without resources a group has its promise itself.
    let text = "[[group]]\nname = \"g\"\nreservation = \"5 iops\"\n\
                [[tenant]]\nname = \"a\"\ngroup = \"g\"\nreservation = \"6 iops\"\n";
    let found = Policy::parse(text).unwrap().feasible().unwrap_err();
    assert_eq!((found.whole, found.reserved), (Whole::Reservation("g".into()), 6));
}

fn levels() -> impl Strategy<Value = [Option<u32>; 2]> {
    [prop::option::of(1u32..1000), prop::option::of(1u32..1000)]
}

/// A field with these levels, in bytes and in operations; nothing where neither is there.
fn field(name: &str, [bytes, operations]: [Option<u32>; 2]) -> String {
    let bytes = bytes.map(|bytes| format!("\"{bytes}B/s\""));
    let texts: Vec<_> =
        bytes.into_iter().chain(operations.map(|iops| format!("\"{iops} iops\""))).collect();
    if texts.is_empty() { String::new() } else { format!("{name} = [{}]\n", texts.join(", ")) }
}

proptest! {
    /// A policy without resources is the same for every gate, and for stages it is what a policy
    /// is that has its budget as the capacity of one resource of every file.
    #[test]
    fn a_policy_without_resources_is_one_of_everything(
        budget in levels(),
        promises in prop::collection::vec((levels(), prop::option::of(1u32..10)), 0..6),
    ) {
        let promise = |(levels, weight): &([Option<u32>; 2], Option<u32>)| {
            let weight = weight.map_or(String::new(), |weight| format!("weight = {weight}\n"));
            field("reservation", *levels) + &weight
        };
        let mut old = field("budget", budget);
        let mut new = String::from("[[resource]]\nname = \"r\"\npath = \"/**\"\n");
        new += &field("capacity", budget);
        for (number, promised) in promises.iter().enumerate() {
            let tenant = format!("[[tenant]]\nname = \"t{number}\"\n");
            old += &format!("{tenant}{}", promise(promised));
            new += &format!("{tenant}[tenant.on.r]\n{}", promise(promised));
        }
        let (old, new) = (Policy::parse(&old).unwrap(), Policy::parse(&new).unwrap());
        for gate in GateKind::ALL {
            prop_assert_eq!(&old.at(gate), &old);
        }
        prop_assert_eq!(old.stage_paths(), new.stage_paths());
        prop_assert_eq!(old.feasible().is_ok(), new.feasible().is_ok());
        let mut stages = new.at(GateKind::Stage);
        stages.resources.clear();
        prop_assert_eq!(&stages, &old);
    }
}
