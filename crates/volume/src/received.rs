//! What has come of a connection's client and nothing was made of yet.
//!
//! Requests are parts of the memory into which they were received, and memory stays as long as a part of it is needed. So what is large is
//! received into memory of its own, which goes with it: else an idle connection would keep all that its largest request took.

use bytes::BytesMut;
use ithaca_env::net::{NetError, Reader};

/// More than this is received into memory of its own.
const SMALL_BYTES: usize = 256 << 10;
/// What a reader wants to have beside, so that it does not move all that there is for the last bytes of it.
const SPARE_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Default)]
pub(crate) struct Received {
    /// The bytes, from which requests are taken.
    pub(crate) bytes: BytesMut,
    /// The memory was made for something large.
    is_large: bool,
}

impl From<BytesMut> for Received {
    fn from(bytes: BytesMut) -> Self {
        Self { bytes, is_large: false }
    }
}

impl Received {
    /// Reads more, of which `missing` are needed for the next request. Returns false at the client's end. Dropping the future loses nothing.
    /// Errors: of the connection.
    pub(crate) async fn read(&mut self, reader: &mut Reader, missing: usize) -> Result<bool, NetError> {
        self.make_room(missing);
        Ok(reader.read(&mut self.bytes).await? > 0)
    }

    fn make_room(&mut self, missing: usize) {
        let spare = self.bytes.capacity() - self.bytes.len();
        let is_large = missing > SMALL_BYTES;
        let is_left = self.is_large && self.bytes.len() + missing <= SMALL_BYTES;
        if (is_large && spare < missing) || is_left {
            let mut anew = BytesMut::with_capacity(self.bytes.len() + missing + SPARE_BYTES);
            anew.extend_from_slice(&self.bytes);
            (self.bytes, self.is_large) = (anew, is_large);
        }
        self.bytes.reserve(missing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 4 << 20;

    /// As a reader does.
    fn receive(received: &mut Received, missing: usize) {
        received.make_room(missing);
        received.bytes.resize(received.bytes.len() + missing, 7);
    }

    #[test]
    fn memory_of_a_large_request_goes_with_it_also_when_its_end_came_late_and_more_behind_it() {
        for late in [0, 1, SPARE_BYTES] {
            for behind in [0, 100] {
                let mut received = Received::default();
                receive(&mut received, 28);
                receive(&mut received, LARGE - late);
                receive(&mut received, late + behind);
                drop(received.bytes.split_to(28 + LARGE).freeze());
                received.make_room(1000);
                assert_eq!(received.bytes, vec![7; behind]);
                let kept = received.bytes.capacity();
                assert!(
                    kept <= SMALL_BYTES && !received.bytes.try_reclaim(LARGE / 2),
                    "{kept} bytes are kept"
                );
            }
        }
    }

    #[test]
    fn what_has_come_of_a_large_request_is_moved_once() {
        let mut received = Received::default();
        receive(&mut received, 28);
        received.make_room(LARGE);
        let at = received.bytes.as_ptr();
        for missing in (0..=LARGE).rev().step_by(1 << 16) {
            received.make_room(missing.max(1));
            // A reader makes room for itself, if there is little.
            received.bytes.reserve(SPARE_BYTES);
            received.bytes.resize(28 + LARGE - missing, 7);
            assert_eq!(received.bytes.as_ptr(), at, "{missing} are missing");
        }
    }
}
