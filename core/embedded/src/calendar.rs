//! Times as GROUP_STATUS shows them. The cluster has only tokio's clock, which has no date: its first moment is shown as
//! the start of 2026, so that a simulated run says the same each time.

use std::time::Duration;

/// The days from 1970 to 2026.
const FIRST_DAY: u64 = 20_454;

/// A time since the cluster's start, as RFC 3339 in UTC; without one, what the broker shows for "never".
pub(crate) fn rfc3339(since_start: Option<Duration>) -> String {
    let Some(elapsed) = since_start else { return "0001-01-01T00:00:00Z".to_owned() };
    let seconds = elapsed.as_secs();
    let (year, month, day) = date(FIRST_DAY + seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let mut out = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    let nanos = elapsed.subsec_nanos();
    if nanos != 0 {
        out.push_str(format!(".{nanos:09}").trim_end_matches('0'));
    }
    out.push('Z');
    out
}

/// Year, month and day of a day counted from 1970-01-01, by eras of 400 years that begin on the first of March.
fn date(day: u64) -> (u64, u64, u64) {
    let shifted = day + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(rfc3339(None), "0001-01-01T00:00:00Z");
        assert_eq!(rfc3339(Some(Duration::ZERO)), "2026-01-01T00:00:00Z");
        assert_eq!(rfc3339(Some(Duration::from_millis(61_250))), "2026-01-01T00:01:01.25Z");
        assert_eq!(rfc3339(Some(Duration::from_secs(86_400 * (31 + 28)))), "2026-03-01T00:00:00Z");
        assert_eq!(rfc3339(Some(Duration::from_secs(86_400 * (365 + 365 + 59)))), "2028-02-29T00:00:00Z");
    }
}
