//! Access of clients to tenants, and the effect of a new policy on open sessions.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_fabric::stream::Address;
use tidegate_wire::nbd::client::{export_data, options};
use tidegate_wire::nbd::constants::{option, option_reply};

use crate::client::Client;
use crate::owners::{Controller, testbed};
use crate::{PATIENCE, Testbed, eventually, pool};

const EPERM: u32 = 1;

/// The number of the user of this process, who is an operator of the gateway.
fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The answer to a TCP client that asks for an export: its kind and its text.
fn export_answer(testbed: &Testbed, export: &str) -> (u32, String) {
    let Address::Tcp(address) = testbed.gateway.addresses()[1] else { panic!("the second is TCP") };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&options(3, &[(option::GO, &export_data(export, &[]))])).unwrap();
    let mut head = [0; 18 + 20];
    stream.read_exact(&mut head).unwrap();
    let [.., k0, k1, k2, k3, l0, l1, l2, l3] = head;
    let mut text = vec![0; u32::from_be_bytes([l0, l1, l2, l3]) as usize];
    stream.read_exact(&mut text).unwrap();
    (u32::from_be_bytes([k0, k1, k2, k3]), String::from_utf8_lossy(&text).into_owned())
}

fn policy(users: &str) -> String {
    format!("[[tenant]]\nname = \"oltp\"\n{users}[[tenant]]\nname = \"report\"\n")
}

#[test]
fn users_of_a_tenant_hold_in_the_clear_and_a_tenant_that_is_not_offered_is_refused() {
    let testbed = testbed(|_, config| config.volumes[0].tenant = "oltp".into());
    let mut controller = Controller::start(testbed.folder.path());
    controller.apply_text(1, &policy("users = [\"cert:alice\"]\n"));
    eventually("the policy", || export_answer(&testbed, "plain").0 == option_reply::POLICY);
    let (kind, text) = export_answer(&testbed, "plain@oltp");
    let denied = "a client over TCP in the clear may not act for tenant \"oltp\"";
    assert_eq!((kind, text.as_str()), (option_reply::POLICY, denied));
    assert_eq!(export_answer(&testbed, "plain@report").0, option_reply::INFO, "the file offers it");
    let (kind, text) = export_answer(&testbed, "plain@nosuch");
    assert_eq!(
        (kind, text.as_str()),
        (option_reply::POLICY, "the policy has no tenant \"nosuch\"")
    );
    assert_eq!(export_answer(&testbed, "none").0, option_reply::UNKNOWN);
    let denied = || {
        let reasons = testbed.gateway.pressure().turned_away.into_iter();
        reasons.filter(|(name, _)| name == "access_denied").map(|(_, count)| count).sum::<u64>()
    };
    let before = denied();
    assert!(before > 0, "they are counted");
    assert_eq!(export_answer(&testbed, "plain@nosuch").0, option_reply::POLICY);
    assert_eq!(denied(), before + 1);
    controller.apply_text(2, &format!("{}[[tenant]]\nname = \"other\"\n", policy("")));
    eventually("the next policy", || export_answer(&testbed, "plain").0 == option_reply::INFO);
    let (kind, text) = export_answer(&testbed, "plain@other");
    assert_eq!(kind, option_reply::POLICY);
    assert!(text.starts_with("volume plain may not be opened for tenant \"other\""), "{text}");
}

#[test]
fn a_session_that_a_new_policy_does_not_allow_is_refused_with_eperm() {
    let testbed = testbed(|_, config| config.volumes[0].tenant = "oltp".into());
    let mut controller = Controller::start(testbed.folder.path());
    controller.apply_text(1, &policy(""));
    let mut client = Client::enter(&testbed, "plain", true);
    let mut report = Client::enter(&testbed, "plain@report", true);
    eventually("the policy", || export_answer(&testbed, "plain@nosuch").0 == option_reply::POLICY);
    assert!(client.read(0, 512).is_ok());
    controller.apply_text(2, &policy("users = [\"nobody\"]\n"));
    eventually("it is refused", || client.read(0, 512) == Err(EPERM));
    assert_eq!(client.write(0, &[1; 512]), EPERM);
    assert!(report.read(0, 512).is_ok());
    // Named by number or name, it may.
    controller.apply_text(3, &policy(&format!("users = [\"{}\"]\n", uid())));
    eventually("it is served again", || client.read(0, 512).is_ok());
    // A rule gives some requests to a tenant for whom the client may not act.
    let rule = "[[match]]\ntenant = \"oltp\"\nvolume = \"plain\"\noperation = \"write\"\n";
    controller.apply_text(4, &format!("{}{rule}", policy("users = [\"nobody\"]\n")));
    eventually("its writes are refused", || report.write(0, &[1; 512]) == EPERM);
    assert!(report.read(0, 512).is_ok());
}

#[test]
fn before_the_policy_is_known_no_client_is_admitted_over_tcp() {
    let testbed = testbed(|_, _| {});
    let (kind, text) = export_answer(&testbed, "plain");
    assert_eq!(kind, option_reply::POLICY, "{text}");
    assert!(text.starts_with("the gateway has not heard yet which policy holds"), "{text}");
    assert!(Client::enter(&testbed, "plain", true).read(0, 512).is_ok(), "an operator");
    let _controller = Controller::without_policy(testbed.folder.path());
    eventually("it is known that there is none", || {
        export_answer(&testbed, "plain").0 == option_reply::INFO
    });
}

#[test]
fn keys_are_for_the_users_of_their_tenant() {
    let testbed = testbed(|_, config| pool::add(config, true));
    let mut controller = Controller::start(testbed.folder.path());
    let policy = "[[tenant]]\nname = \"kv\"\n[[tenant]]\nname = \"web\"\nusers = [\"nobody\"]\n\
                  [[match]]\ntenant = \"web\"\nkey = \"session:\"\n";
    controller.apply_text(1, policy);
    let mut client = pool::connect(&testbed);
    let mut reply_to = |request: &str| {
        client.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        String::from_utf8(reply).unwrap()
    };
    let denied = "CLIENT_ERROR the policy does not let this client use this key\r\n";
    eventually("the policy", || reply_to("get session:1") == denied);
    assert_eq!(reply_to("get user:1"), "END\r\n");
    // A value of a key that may not be used is taken with it.
    assert_eq!(reply_to("set session:1 0 0 3\r\nmn "), denied);
    assert_eq!(reply_to("get user:1 session:1 user:2"), denied);
    controller.apply_text(2, &policy.replace("nobody", &uid().to_string()));
    eventually("the next policy", || reply_to("get session:1") == "END\r\n");
}
