//! One subscription to a unit: what may be pushed next.

use crate::limits;
use crate::pos::{Addr, AddrRange};

/// Follows a unit from an address on, as far as its credit goes. It never sees past the watermark: what it is shown is
/// resolved and durable, and so is everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    next: Addr,
    credit_bytes: u64,
}

impl Follower {
    /// Follows from `addr` with this credit.
    pub fn new(addr: Addr, credit_bytes: u64) -> Self {
        Self { next: addr, credit_bytes: credit_bytes.min(limits::CREDIT_MAX_BYTES) }
    }

    /// The addresses to push now, given the unit's watermark; `None` if there are none or no credit is left. How many of
    /// them go into one push is the shell's choice.
    pub fn ready(&self, watermark: Addr) -> Option<AddrRange> {
        (self.next < watermark && self.credit_bytes > 0).then(|| AddrRange::new(self.next, watermark))
    }

    /// Everything up to `end` was pushed, in `bytes` of bodies and data. A push may overdraw the credit.
    pub fn pushed(&mut self, end: Addr, bytes: u64) {
        assert!(end >= self.next, "a follower never goes back");
        self.next = end;
        self.credit_bytes = self.credit_bytes.saturating_sub(bytes);
    }

    /// The follower has room for more.
    pub fn add_credit(&mut self, bytes: u64) {
        self.credit_bytes = self.credit_bytes.saturating_add(bytes).min(limits::CREDIT_MAX_BYTES);
    }

    /// The next address to push.
    pub fn next(&self) -> Addr {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_up_to_the_watermark_and_stops_without_credit() {
        let mut follower = Follower::new(Addr(3), 100);
        assert_eq!(follower.ready(Addr(3)), None);
        assert_eq!(follower.ready(Addr(9)), Some(AddrRange::new(Addr(3), Addr(9))));
        follower.pushed(Addr(5), 150);
        assert_eq!((follower.ready(Addr(9)), follower.next()), (None, Addr(5)));
        follower.add_credit(1);
        assert_eq!(follower.ready(Addr(9)), Some(AddrRange::new(Addr(5), Addr(9))));
    }
}
