//! Who knows, elsewhere than on a chain's drives, which generation they have come to.
//!
//! Of a mirrored link each live side says which others are stale. A side that could not be told so, and is given without any drive that knows,
//! would be taken for the newest: nothing on it says otherwise. A notary does. (docs/protocol/mirrors.md)

use std::pin::Pin;

/// Remembers the highest generation of one chain's drives.
pub trait Notary {
    /// Where it remembers that, for errors.
    fn name(&self) -> String;

    /// The highest generation that it was told; 0 for none.
    fn generation(&self) -> u64;

    /// Remembers a generation that every drive knows which is live in it. A write that a side lacks is not acknowledged before this is done: when
    /// the generation is on stable storage, or after a while all the same, since a notary that fails is no reason for the chain to stop. It goes
    /// on when it is waited for no longer.
    fn tell(&self, generation: u64) -> Pin<Box<dyn Future<Output = ()>>>;
}
