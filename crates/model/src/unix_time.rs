//! The wall clock's time.

use core::fmt;

/// A moment of the wall clock, in seconds since 1970, shown as RFC 3339 in UTC.
///
/// ```
/// use tidegate_model::UnixTime;
/// assert_eq!(UnixTime(0).to_string(), "1970-01-01T00:00:00Z");
/// assert_eq!(UnixTime(1_709_210_096).to_string(), "2024-02-29T12:34:56Z");
/// assert_eq!(UnixTime(4_102_444_800).to_string(), "2100-01-01T00:00:00Z");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime(pub u64);

impl UnixTime {
    const DAY: u64 = 86_400;

    /// Year, month and day in the Gregorian calendar. Years are counted from March, so that a leap
    /// day is the last of its year, and from 0000-03-01, which is 719,468 days before 1970.
    fn date(self) -> (u64, u64, u64) {
        let days = self.0 / Self::DAY + 719_468;
        // 400 years always have 146,097 days.
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let leap_days = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // From March on, five months have 153 days.
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let is_next_year = month_from_march >= 10;
        let month = if is_next_year { month_from_march - 9 } else { month_from_march + 3 };
        (era * 400 + year_of_era + u64::from(is_next_year), month, day)
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        let second = self.0 % Self::DAY;
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every day from 1970 to 2470, against a calendar that counts one day after the other.
    #[test]
    fn days_follow_each_other_as_in_a_calendar() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..500 * 366 {
            assert_eq!(UnixTime(days * UnixTime::DAY).date(), (year, month, day));
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
    }
}
