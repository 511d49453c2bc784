//! The report of `tidegate --json run --report`: the bytes of each channel.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The report, as far as it is used here.
#[derive(Deserialize)]
struct RunReport {
    channels: Vec<ReportedChannel>,
}

#[derive(Deserialize)]
struct ReportedChannel {
    channel: String,
    bytes: u64,
}

/// Bytes of each channel by its name, from what a run wrote on standard error. The program may have
/// written there, too, also without the end of a line.
pub(super) fn channels(stderr: &str) -> BTreeMap<String, u64> {
    let mut lines = stderr.rsplit(['\n', '\r']);
    let report = lines.find_map(|line| serde_json::from_str::<RunReport>(line).ok());
    let channels = report.map(|report| report.channels).unwrap_or_default();
    channels.into_iter().map(|one| (one.channel, one.bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_read_from_the_last_report() {
        let report = "{\"warning\":\"x\"}\n10 operations\r{\"passed_bytes\":3,\"channels\":[\
                      {\"channel\":\"flush\",\"operations\":1,\"bytes\":3}]}\nend\n";
        assert_eq!(channels(report), BTreeMap::from([("flush".to_owned(), 3)]));
        assert!(channels("").is_empty());
    }
}
