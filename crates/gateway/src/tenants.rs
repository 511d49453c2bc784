//! Names of tenants as small numbers, for as long as somebody uses them.

use tidegate_model::TenantId;

/// The names that connections of one worker are opened for. A number that nobody uses any more is
/// given to the next name, so there are never more than connections.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    /// The name of each number, beginning with 1, and how many use it.
    seats: Vec<(String, u32)>,
}

impl Tenants {
    /// The number of `name`, and whether the nodes have to be told that it is new.
    pub(crate) fn enter(&mut self, name: &str) -> (TenantId, bool) {
        if name.is_empty() {
            return (TenantId::NOBODY, false);
        }
        let known = self.seats.iter().position(|(seat, _)| seat == name);
        let free = || self.seats.iter().position(|(_, users)| *users == 0);
        let place = known.or_else(free).unwrap_or(self.seats.len());
        let Ok(number) = u16::try_from(place + 1) else { return (TenantId::NOBODY, false) };
        if place == self.seats.len() {
            self.seats.push((String::new(), 0));
        }
        let (seat, users) = &mut self.seats[place];
        let is_new = known.is_none();
        if is_new {
            name.clone_into(seat);
        }
        *users += 1;
        (TenantId(number), is_new)
    }

    /// One user less.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        if let Some(place) = usize::from(tenant.0).checked_sub(1) {
            self.seats[place].1 -= 1;
        }
    }

    /// All names, as nodes want to hear them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.seats.iter().map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_again_when_nobody_uses_them() {
        let mut tenants = Tenants::default();
        assert_eq!(tenants.enter(""), (TenantId::NOBODY, false));
        assert_eq!(tenants.enter("a"), (TenantId(1), true));
        assert_eq!(tenants.enter("b"), (TenantId(2), true));
        assert_eq!(tenants.enter("a"), (TenantId(1), false));
        tenants.leave(TenantId(1));
        assert_eq!(tenants.enter("c"), (TenantId(3), true), "a is still in use");
        tenants.leave(TenantId(1));
        tenants.leave(TenantId::NOBODY);
        assert_eq!(tenants.enter("d"), (TenantId(1), true));
        assert_eq!(tenants.names(), ["d", "b", "c"]);
        assert_eq!(tenants.enter("a"), (TenantId(4), true));
    }
}
