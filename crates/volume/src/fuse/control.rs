//! Control calls (`ioctl`): Isotope's interface, for the thread that calls. `c/ithaca_ioctl.h` has the numbers for programs in C.

use bytes::{Buf, Bytes};

use super::wire::Errno;
use crate::{Durability, Isolation, TxHandle};

/// What the numbers are marked with.
const MAGIC: u32 = 0xB1;
const WRITES: u32 = 1;
const READS: u32 = 2;

/// A number as the system's headers make it: which way its data goes, how long that is, and which call it is.
const fn number(direction: u32, nth: u32, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | MAGIC << 8 | nth
}

const BEGIN: u32 = number(WRITES, 1, 8);
const END: u32 = number(READS, 2, 8);
const ABORT: u32 = number(0, 3, 0);
const RELEASE: u32 = number(READS | WRITES, 4, 24);
const TAKE_OVER: u32 = number(WRITES, 5, 16);
const MARK_ACCESSED: u32 = number(WRITES, 6, 16);
const PLEASE_CACHE: u32 = number(WRITES, 7, 8);

/// A control call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Begin {
        isolation: Option<Isolation>,
        durability: Durability,
    },
    End,
    Abort,
    /// To anyone who knows the handle, or to the same user alone.
    Release {
        to_anyone: bool,
    },
    TakeOver(TxHandle),
    MarkAccessed {
        block: u64,
        first: u32,
        end: u32,
    },
    PleaseCache {
        block: u64,
    },
}

impl Control {
    /// Whether a call of this number begins a transaction.
    pub(super) fn begins(command: u32) -> bool {
        command == BEGIN
    }

    /// Reads a call. Errors: `NOTTY` for one that is none of these, `INVAL` for a field that cannot be.
    pub(super) fn decode(command: u32, mut data: Bytes) -> Result<Self, Errno> {
        let reads = (command >> 30) & WRITES != 0;
        if data.len() != if reads { (command >> 16 & 0x3fff) as usize } else { 0 } {
            return Err(Errno::INVAL);
        }
        Ok(match command {
            BEGIN => Self::Begin {
                isolation: match data.get_u32_le() {
                    0 => None,
                    1 => Some(Isolation::StrictSerializable),
                    2 => Some(Isolation::Snapshot),
                    _ => return Err(Errno::INVAL),
                },
                durability: match data.get_u32_le() {
                    0 => Durability::Stable,
                    1 => Durability::Acknowledged,
                    _ => return Err(Errno::INVAL),
                },
            },
            END => Self::End,
            ABORT => Self::Abort,
            RELEASE => {
                data.advance(16);
                match data.get_u32_le() {
                    0 => Self::Release { to_anyone: false },
                    1 => Self::Release { to_anyone: true },
                    _ => return Err(Errno::INVAL),
                }
            }
            TAKE_OVER => Self::TakeOver(TxHandle(data.get_u128())),
            MARK_ACCESSED => Self::MarkAccessed {
                block: data.get_u64_le(),
                first: data.get_u32_le(),
                end: data.get_u32_le(),
            },
            PLEASE_CACHE => Self::PleaseCache { block: data.get_u64_le() },
            _ => return Err(Errno::NOTTY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_that_the_header_for_c_gives_them() {
        let numbers = [BEGIN, END, ABORT, RELEASE, TAKE_OVER, MARK_ACCESSED, PLEASE_CACHE];
        let expected = [0x4008_b101, 0x8008_b102, 0xb103, 0xc018_b104, 0x4010_b105, 0x4010_b106, 0x4008_b107];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_call_that_is_none_or_has_other_data_is_refused() {
        let check = |command, data: &'static [u8]| Control::decode(command, Bytes::from_static(data));
        assert_eq!(check(END, &[]), Ok(Control::End));
        assert_eq!(check(PLEASE_CACHE, &[7, 0, 0, 0, 0, 0, 0, 0]), Ok(Control::PleaseCache { block: 7 }));
        assert_eq!(check(PLEASE_CACHE, &[7, 0, 0, 0]), Err(Errno::INVAL));
        assert_eq!(check(BEGIN, &[3, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::INVAL));
        assert_eq!(check(0x5401, &[]), Err(Errno::NOTTY), "TCGETS");
        assert_eq!(check(number(WRITES, 9, 4), &[0; 4]), Err(Errno::NOTTY));
    }
}
