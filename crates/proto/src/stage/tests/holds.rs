//! Holds: buckets that let no request pass for a while.

use super::*;
use crate::stage::plan::Hold;

#[test]
fn a_hold_is_for_a_bucket_that_is_there_and_the_next_controller_finds_it() {
    let mut machine = connected(Fallback::Keep);
    let span = Span(700 * MS);
    let rules = vec![
        Rule::gate("kv", bucket(100)),
        Rule::gate("probe", GateSpec::LatencyProbe),
        Rule::hold("kv", span),
    ];
    let change = install(&mut machine, rules);
    assert_eq!(change.holds, [Hold { number: 0, span }]);
    let held = |machine: &Machine, ms: u64| match machine.hello(Time(ms * MS)) {
        Hello::Stage { info, .. } => info.held.buckets[0].held,
        other => panic!("{other:?}"),
    };
    assert_eq!([0, 300, 900].map(|ms| held(&machine, ms).0 / MS), [700, 400, 0]);
    let end = Hold { number: 0, span: Span::ZERO };
    let change = install(&mut machine, vec![Rule::hold("kv", Span::ZERO)]);
    assert_eq!(change, Change { holds: vec![end], ..Change::default() });
    assert_eq!(held(&machine, 0), Span::ZERO);
    for gate in ["probe", "other"] {
        assert_eq!(refuse(&mut machine, vec![Rule::hold(gate, span)]).rule, 0);
    }
    // With its gate a hold is gone.
    install(&mut machine, vec![Rule::hold("kv", span)]);
    install(&mut machine, vec![Rule::CLEAR]);
    install(&mut machine, vec![Rule::gate("kv", bucket(100))]);
    assert_eq!(held(&machine, 0), Span::ZERO);
}
