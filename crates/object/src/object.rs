//! What an object is: a state, and mutators that change it in the same way wherever they are applied.
//!
//! ```text
//!   a program calls           put("k", 7)
//!     its arguments           {"key": "k", "value": 7}            a record in the object's stream of the log
//!                                    │
//!        ┌───────────────────────────┼───────────────────────────┐
//!        ▼                           ▼                           ▼
//!   view here: apply            view there: apply         view of next year: apply
//!   state, result               state                     state
//! ```
//!
//! An object MUST be deterministic: the state after a record and the record's results are a function of the records before
//! it. It MUST NOT look at clocks, random numbers, addresses, or anything else that another program would see otherwise;
//! what depends on such things is an argument. It MUST tell every change by an undo, so that its view can go back to a
//! snapshot. Whatever it returns belongs to the caller.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use ithaca_log::pos::{LogPos, StreamId};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::access::{Access, Portable, encode_output};
use crate::ignored::ignores;
use crate::in_order::InOrder;
use crate::key::Keys;
use crate::limits;
use crate::planted::Planted;
use crate::record::Call;

/// A replicated data structure. Its default is the empty one, which position 0 of the log has; its MessagePack is its
/// checkpoint.
pub trait Object: Default + Serialize + DeserializeOwned + 'static {
    /// What it is called in messages.
    const TYPE: &'static str;
    /// Its mutators. A record may call these and no others.
    const METHODS: &'static [Method<Self>];
    /// What can be asked of it by name, where its state is at a node.
    const ACCESSORS: &'static [Access<Self>] = &[];
    /// How a change is taken back: see [`Object::exchange`].
    type Undo: 'static;
    /// Records behind the newest that a view takes back by undos, so that a snapshot there is read without reading the log. An object
    /// with 0 needs no undo: old states of it are made by replay, and a transaction's own calls are made on a copy of it.
    const HISTORY_MAX_COUNT: usize = limits::HISTORY_MAX_COUNT;
    /// Whether calls that a transaction only sends are made on its snapshot before it commits, where the state is here and takes back changes: one
    /// that panics would stop the object everywhere. Not for objects whose mutators never panic.
    const IS_TRIED: bool = true;
    /// Whether its stream has few calls as a rule: whoever opens it reads the first of them while the sequencer is asked where they end.
    const IS_SHORT: bool = false;

    /// Exchanges what `undo` holds with what the state has in its place. The first time this takes the change back, the
    /// second time it makes it again, and so on. Undos are exchanged newest first to go back and oldest first to return.
    fn exchange(&mut self, undo: &mut Self::Undo);

    /// A digest of the state: MUST be the same for the same state, and should differ for others. It is asked for every
    /// [`DIGEST_EVERY`](crate::limits::DIGEST_EVERY) records, as long as every call goes back to the bytes that it came of. The default
    /// is [`digest_of_state`], which encodes all of it, so an object that may be large keeps one up to date instead.
    fn digest(&self) -> u64 {
        digest_of_state(self)
    }

    /// The lowest position of an entry that the state points to, if it points to entries: as long as it can be read, nothing from there on
    /// is trimmed. It is asked for once for each state that is the earliest after forgetting.
    fn needs_from(&self) -> Option<LogPos> {
        None
    }

    /// Puts a fault in force, in tests of the tests.
    #[doc(hidden)]
    fn plant(&mut self, _: Planted) {}
}

/// A digest of some pieces of bytes, one after the other. Not for keeping out those who mean harm.
pub fn digest_of(pieces: &[&[u8]]) -> u64 {
    let mut digest = Digest::default();
    for piece in pieces {
        digest.add(Piece { checksum: crc32c::crc32c(piece), len: piece.len() });
    }
    digest.0
}

/// The digest of the MessagePack of a state, with what is in a `HashMap` or `HashSet` of it in one order: they have it in another one in each
/// program. 0, which is compared with nothing, of a state that cannot be encoded: it has no checkpoint either.
///
/// Collections of the standard library and of hashbrown are known to have no order, as serde encodes them. Any other type of the state MUST be
/// encoded in the same way wherever it is the same.
pub fn digest_of_state(state: &impl Serialize) -> u64 {
    digest_of_value(&InOrder(state)).unwrap_or(0)
}

/// The digest of the MessagePack of a value, made without keeping its bytes; `None` if it cannot be encoded.
pub(crate) fn digest_of_value(value: &impl Serialize) -> Option<u64> {
    digest_and_bytes_of(value).map(|(digest, _)| digest)
}

/// The same, and how many bytes it takes.
pub(crate) fn digest_and_bytes_of(value: &impl Serialize) -> Option<(u64, usize)> {
    let (mut digest, piece) = (Digest::default(), Piece::of(value)?);
    let bytes = piece.len;
    digest.add(piece);
    Some((digest.0, bytes))
}

/// The digest of the MessagePack of some values, each a piece, made without keeping their bytes; `None` if one cannot be encoded.
pub(crate) fn digest_of_values(first: &impl Serialize, second: &impl Serialize) -> Option<u64> {
    let mut digest = Digest::default();
    digest.add(Piece::of(first)?);
    digest.add(Piece::of(second)?);
    Some(digest.0)
}

struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0x9E37_79B9_7F4A_7C15)
    }
}

impl Digest {
    fn add(&mut self, piece: Piece) {
        let word = u64::from(piece.checksum) | (piece.len as u64) << 32;
        let mixed = (self.0 ^ word).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// What a digest takes of a piece. Bytes that are written to it are counted and forgotten.
#[derive(Default)]
struct Piece {
    checksum: u32,
    len: usize,
}

impl Piece {
    fn of(value: &impl Serialize) -> Option<Self> {
        let mut piece = Self::default();
        rmp_serde::encode::write_named(&mut piece, value).ok()?;
        Some(piece)
    }
}

impl std::io::Write for Piece {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.checksum = crc32c::crc32c_append(self.checksum, bytes);
        self.len += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How values go back to the bytes that they came of, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Back {
    /// To the same ones.
    Same,
    /// To others. So it is where their type has a field more than that of whoever wrote them, and where they are in no order, as a `HashMap`
    /// is: what is made of their encoding is another thing in another program.
    Otherwise,
    /// To others that say less: whoever wrote them had fields that their type has not, and what these held was dropped.
    Less,
}

impl Back {
    /// How this value does.
    pub(crate) fn of<T: Serialize + DeserializeOwned>(value: &T, bytes: &[u8]) -> Self {
        let mut again = Again { rest: Some(bytes), len: 0 };
        match rmp_serde::encode::write_named(&mut again, value) {
            Ok(()) if again.rest.is_some_and(<[u8]>::is_empty) => Self::Same,
            // Where serde puts a part aside before its type reads it nobody is told what that ignores; it is shorter then.
            Ok(()) if again.len < bytes.len() => Self::Less,
            _ if ignores::<T>(bytes) => Self::Less,
            _ => Self::Otherwise,
        }
    }
}

/// That a state or values from which this program has dropped something are not to be written anew.
pub(crate) fn dropped(what: &'static str) -> CallError {
    let error = "others have written fields that this program does not know, and that would be missing";
    CallError::Arguments { method: what, error: error.to_owned() }
}

/// Bytes that are known, written again.
struct Again<'b> {
    /// What is still to be written; `None` if something else was.
    rest: Option<&'b [u8]>,
    /// How many were written.
    len: usize,
}

impl std::io::Write for Again<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.rest = self.rest.and_then(|rest| rest.strip_prefix(bytes));
        self.len += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A method that changes the object. Its fields are its arguments; fields that a reader does not know are ignored, and those
/// that it misses have their defaults if the field says so.
pub trait Mutator<O: Object>: Serialize + DeserializeOwned + 'static {
    /// Its name in records: at most [`METHOD_MAX_BYTES`](crate::limits::METHOD_MAX_BYTES). It never changes.
    const NAME: &'static str;
    /// What it gives back to whoever called it.
    type Output: 'static;
    /// How that is sent to a program that has not the object's state; `None`, and such a program cannot ask for it.
    const RESULT: Option<Portable<Self::Output>> = None;

    /// What it depends on and what it changes, whatever the state is.
    fn keys(&self) -> Keys;

    /// Does it. Every change is pushed to `undo`, in order. `pos` is where the record stands in the log; while a transaction
    /// is not committed it is the transaction's snapshot, so a result MUST NOT depend on it.
    fn apply(self, object: &mut O, pos: LogPos, undo: &mut Vec<O::Undo>) -> Self::Output;

    /// The same where nobody asks what it gives back, which most views of most records do not. MUST change the object in the same way.
    fn apply_unasked(self, object: &mut O, pos: LogPos, undo: &mut Vec<O::Undo>) {
        drop(self.apply(object, pos, undo));
    }
}

/// Why a call cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// The object has no such mutator.
    #[error("a {object} has no method `{method}`")]
    UnknownMethod {
        /// What the object is.
        object: &'static str,
        /// The mutator's name.
        method: String,
    },
    /// The arguments are not those of the mutator.
    #[error("`{method}`: {error}")]
    Arguments {
        /// The mutator's name.
        method: &'static str,
        /// What is wrong with them.
        error: String,
    },
    /// The mutator panicked. Whoever applies the same call to the same state panics as well.
    #[error("`{method}` panicked: {message}")]
    Panicked {
        /// The mutator's name.
        method: &'static str,
        /// What it said.
        message: String,
    },
}

/// What a call gave back; `None` if nobody wanted it.
pub type Output = Option<Box<dyn Any>>;

type Apply<O> =
    fn(&[u8], &mut O, LogPos, &mut Vec<<O as Object>::Undo>, bool, &mut Back) -> Result<Output, CallError>;

/// A mutator as views know it: by its name.
pub struct Method<O: Object> {
    name: &'static str,
    apply: Apply<O>,
    keys: fn(&[u8]) -> Result<Keys, CallError>,
    encode: fn(&dyn Any) -> Option<Vec<u8>>,
}

impl<O: Object> Method<O> {
    /// That of the mutator `M`.
    pub const fn of<M: Mutator<O>>() -> Self {
        Self {
            name: M::NAME,
            apply: apply::<O, M>,
            keys: keys::<O, M>,
            encode: |output| encode_output(M::RESULT, output),
        }
    }

    /// The object's method of this name.
    pub(crate) fn find(name: &[u8]) -> Result<&'static Self, CallError> {
        O::METHODS.iter().find(|method| method.name.as_bytes() == name).ok_or_else(|| {
            let method = String::from_utf8_lossy(name).into_owned();
            CallError::UnknownMethod { object: O::TYPE, method }
        })
    }

    /// Applies a call, and gives its result if it is `wanted`. What `back` says gets worse if the arguments go back worse to the
    /// bytes that they came of. On an error nothing was changed, but for `Panicked`: the object is then not to be used any more, as nobody
    /// knows what it is.
    pub(crate) fn apply(
        &self,
        arguments: &[u8],
        object: &mut O,
        pos: LogPos,
        undo: &mut Vec<O::Undo>,
        wanted: bool,
        back: &mut Back,
    ) -> Result<Output, CallError> {
        let apply = || (self.apply)(arguments, object, pos, undo, wanted, back);
        // What panics was called by the log, for everybody; it must not take those with it who have other objects.
        catch_unwind(AssertUnwindSafe(apply)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Err(CallError::Panicked { method: self.name, message })
        })
    }

    /// The MessagePack of what it gave, if that can be sent.
    pub(crate) fn encode(&self, output: &dyn Any) -> Option<Vec<u8>> {
        (self.encode)(output)
    }

    /// The keys of a call with these arguments.
    pub(crate) fn keys(&self, arguments: &[u8]) -> Result<Keys, CallError> {
        (self.keys)(arguments)
    }
}

/// What a call of an object of this kind depends on and changes.
pub fn keys_of<O: Object>(call: &Call) -> Result<Keys, CallError> {
    Method::<O>::find(&call.method)?.keys(&call.arguments)
}

/// Bytes of memory that are kept for the next arguments to be encoded.
const SCRATCH_MAX_BYTES: usize = 64 << 10;

thread_local! {
    /// Where arguments are encoded before it is known how many bytes they have.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The call of a mutator on the object of `stream`.
pub fn call_of<O: Object, M: Mutator<O>>(stream: StreamId, mutator: &M) -> Result<Call, CallError> {
    encoded::<O, M, _>(mutator, |arguments| Call {
        arguments: Bytes::copy_from_slice(arguments),
        ..empty_call::<O, M>(stream)
    })
}

/// The call of a mutator of `M` without its arguments.
pub(crate) fn empty_call<O: Object, M: Mutator<O>>(stream: StreamId) -> Call {
    Call { stream, method: Bytes::from_static(M::NAME.as_bytes()), arguments: Bytes::new() }
}

/// What `take` makes of the encoded arguments.
pub(crate) fn encoded<O: Object, M: Mutator<O>, T>(
    mutator: &M,
    take: impl FnOnce(&[u8]) -> T,
) -> Result<T, CallError> {
    let mut scratch = SCRATCH.take();
    scratch.clear();
    let written = rmp_serde::encode::write_named(&mut scratch, mutator);
    let taken = written.map_err(|error| error.to_string()).and_then(|()| {
        if is_too_deep(&scratch) {
            return Err(format!("values are more than {} deep inside each other", limits::DEPTH_MAX_COUNT));
        }
        Ok(take(&scratch))
    });
    if scratch.capacity() <= SCRATCH_MAX_BYTES {
        SCRATCH.set(scratch);
    }
    taken.map_err(|error| CallError::Arguments { method: M::NAME, error })
}

/// Whether so many lists and maps are inside each other that nodes, which must take what is in the log, would stop at it. Each takes a byte.
fn is_too_deep(encoded: &[u8]) -> bool {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(encoded);
    decoder.set_max_depth(limits::DEPTH_MAX_COUNT + 1);
    encoded.len() > limits::DEPTH_MAX_COUNT && IgnoredAny::deserialize(&mut decoder).is_err()
}

/// Kept apart: it would else be a part of each function that begins with it.
#[inline(never)]
fn decode<O: Object, M: Mutator<O>>(arguments: &[u8]) -> Result<M, CallError> {
    let invalid = |error: rmp_serde::decode::Error| error.to_string();
    rmp_serde::from_slice(arguments)
        .map_err(|error| CallError::Arguments { method: M::NAME, error: invalid(error) })
}

fn apply<O: Object, M: Mutator<O>>(
    arguments: &[u8],
    object: &mut O,
    pos: LogPos,
    undo: &mut Vec<O::Undo>,
    wanted: bool,
    back: &mut Back,
) -> Result<Output, CallError> {
    let mutator = decode::<O, M>(arguments)?;
    // By the very value that the object gets: decoded again it may be in another order.
    if *back < Back::Less {
        *back = Back::of(&mutator, arguments).max(*back);
    }
    if wanted {
        return Ok(Some(Box::new(mutator.apply(object, pos, undo))));
    }
    mutator.apply_unasked(object, pos, undo);
    Ok(None)
}

fn keys<O: Object, M: Mutator<O>>(arguments: &[u8]) -> Result<Keys, CallError> {
    Ok(decode::<O, M>(arguments)?.keys())
}
