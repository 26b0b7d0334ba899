//! The beginning of a connection: which export, and what both sides can do. Pure.
//!
//! ```text
//!   greeting ──► client's flags ──► option ──► option ──► … ──► EXPORT_NAME or GO ──► transmission
//!                                     │ ▲                 └───► ABORT ──────────────► the end
//!                            Open(name) │ opened(..)
//!                                     ▼ │
//!                                    shell
//! ```
//!
//! An option that is not known is answered so and skipped. What breaks the rules of the frame itself ends the connection.

use bytes::{Buf, BufMut, BytesMut};
use thiserror::Error;

use super::limits::{NAME_MAX_BYTES, OPTION_MAX_BYTES, OPTIONS_MAX, PAYLOAD_MAX_BYTES};
use super::options::{Contexts, ExportAsk, Malformed};
use super::wire::{
    GREETING_MAGIC, OPTION_MAGIC, answer, export, handshake, info, option, put_answer, put_refusal,
};
use ithaca_env::limits::BLOCK_BYTES;

/// The one metadata context: which bytes are stored.
const ALLOCATION: &str = "base:allocation";
/// The number by which it is called in transmission.
pub(super) const ALLOCATION_ID: u32 = 1;
/// Zeros that end an answer to `EXPORT_NAME`, unless the client does without.
const PADDING_BYTES: usize = 124;
/// Bytes before an option's data.
const OPTION_HEAD_BYTES: usize = 16;

/// Why a connection cannot go on: what the client sent is no NBD.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// A frame does not begin as one.
    #[error("{what}: found {found:#x}, expected {expected:#x}")]
    Magic {
        /// Which frame.
        what: &'static str,
        /// What it begins with.
        found: u64,
        /// What it should begin with.
        expected: u64,
    },
    /// The client asks for a handshake that is not known.
    #[error("the client's flags are {found:#x}, expected bits 0 and 1 at the most")]
    Flags {
        /// What it sent.
        found: u32,
    },
    /// More options than a client has need of.
    #[error("more than {limit} options")]
    Options {
        /// How many are answered.
        limit: u32,
    },
    /// An export that is not there was asked for in a way that has no answer but the end.
    #[error("{why}")]
    NoExport {
        /// Why there is none.
        why: String,
    },
}

/// What an export is, as told to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its own name, whatever name it was asked for by.
    pub name: String,
    /// In words.
    pub description: String,
    /// Bytes.
    pub size_bytes: u64,
    /// It cannot be written to.
    pub read_only: bool,
    /// It is what a transaction sees: nothing is durable before its commit.
    pub in_transaction: bool,
    /// Another connection that asks for it by the same name gets the same, so that a client may use several.
    pub same_for_all: bool,
}

impl ExportInfo {
    /// The flags that say what can be done with it, where replies are structured or not. A flush on any connection covers what was answered
    /// on all of them.
    fn flags(&self, structured: bool) -> u16 {
        // Without structured replies each comes in one piece anyway, and the protocol wants the flag to be clear.
        let one_piece = if structured { export::SEND_DF } else { 0 };
        let always = export::HAS_FLAGS | export::SEND_CACHE | one_piece;
        if self.in_transaction {
            return always | export::SEND_WRITE_ZEROES;
        }
        let writes = if self.read_only {
            export::READ_ONLY
        } else {
            export::SEND_FUA | export::SEND_TRIM | export::SEND_WRITE_ZEROES
        };
        let several = if self.same_for_all { export::CAN_MULTI_CONN } else { 0 };
        always | export::SEND_FLUSH | writes | several
    }
}

/// Why an export cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoExport {
    /// There is none of that name, in words.
    Unknown(String),
    /// The server stops.
    Shutdown,
}

/// What client and server agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Replies to reads are made of chunks.
    pub structured: bool,
    /// The client may ask which bytes are stored.
    pub status: bool,
}

/// How a handshake goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// With more bytes of the client.
    Read,
    /// With [`Handshake::opened`]: the export of this name is asked for.
    Open(String),
    /// Not at all: the client has ended it.
    End,
}

enum Phase {
    ClientFlags,
    Option,
    /// Bytes of an option that was refused already.
    Skip(u32),
    /// An option waits for the export that it is about.
    Opening(Ask),
}

/// An option about an export.
enum Ask {
    ByName(String),
    Info { option: u32, ask: ExportAsk },
    Contexts { option: u32, ask: Contexts },
}

/// The handshake of one connection.
pub(super) struct Handshake {
    phase: Phase,
    /// What is listed.
    names: Vec<String>,
    padding: bool,
    structured: bool,
    /// The name by which the export was asked for whose allocation the client wants to know.
    status_of: Option<String>,
    options: u32,
}

impl Handshake {
    /// Greets a client with `out`. `names` are the exports that are listed.
    pub fn new(names: Vec<String>, out: &mut BytesMut) -> Self {
        out.put_u64(GREETING_MAGIC);
        out.put_u64(OPTION_MAGIC);
        out.put_u16((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) as u16);
        Self {
            phase: Phase::ClientFlags,
            names,
            padding: true,
            structured: false,
            status_of: None,
            options: 0,
        }
    }

    /// Takes what stands in `received` and appends answers to `out`, until something else is needed. Errors: the
    /// connection ends. Panics while an export is being opened.
    pub fn next(&mut self, received: &mut BytesMut, out: &mut BytesMut) -> Result<Next, ProtocolError> {
        loop {
            match self.phase {
                Phase::ClientFlags if received.len() < 4 => return Ok(Next::Read),
                Phase::ClientFlags => self.client_flags(received.get_u32())?,
                Phase::Skip(left) => {
                    let len = received.len().min(left as usize);
                    received.advance(len);
                    if len < left as usize {
                        self.phase = Phase::Skip(left - len as u32);
                        return Ok(Next::Read);
                    }
                    self.phase = Phase::Option;
                }
                Phase::Option => match self.option(received, out)? {
                    Some(next) => return Ok(next),
                    None => continue,
                },
                Phase::Opening(_) => unreachable!("an export is being opened"),
            }
        }
    }

    fn client_flags(&mut self, flags: u32) -> Result<(), ProtocolError> {
        if flags & !(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
            return Err(ProtocolError::Flags { found: flags });
        }
        self.padding = flags & handshake::NO_ZEROES == 0;
        self.phase = Phase::Option;
        Ok(())
    }

    /// Answers one option, if all of it is there. `None` when the next one may be looked at.
    fn option(&mut self, received: &mut BytesMut, out: &mut BytesMut) -> Result<Option<Next>, ProtocolError> {
        if received.len() < OPTION_HEAD_BYTES {
            return Ok(Some(Next::Read));
        }
        let mut head = &received[..OPTION_HEAD_BYTES];
        let (magic, option, len) = (head.get_u64(), head.get_u32(), head.get_u32());
        if magic != OPTION_MAGIC {
            return Err(ProtocolError::Magic { what: "an option", found: magic, expected: OPTION_MAGIC });
        }
        if self.options >= OPTIONS_MAX {
            return Err(ProtocolError::Options { limit: OPTIONS_MAX });
        }
        if option == option::SET_META_CONTEXT {
            // It replaces what was chosen before, also when it is refused.
            self.status_of = None;
        }
        if len > OPTION_MAX_BYTES {
            // The one option that has no way to say no.
            if option == option::EXPORT_NAME {
                return Err(ProtocolError::NoExport { why: format!("a name of {len} bytes") });
            }
            self.options += 1;
            received.advance(OPTION_HEAD_BYTES);
            put_refusal(out, option, answer::TOO_BIG, &format!("{len} bytes, more than {OPTION_MAX_BYTES}"));
            self.phase = Phase::Skip(len);
            return Ok(None);
        }
        if received.len() < OPTION_HEAD_BYTES + len as usize {
            return Ok(Some(Next::Read));
        }
        self.options += 1;
        received.advance(OPTION_HEAD_BYTES);
        let data = received.split_to(len as usize);
        self.whole_option(option, &data, out)
    }

    fn whole_option(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut BytesMut,
    ) -> Result<Option<Next>, ProtocolError> {
        match option {
            option::EXPORT_NAME => {
                let name = name_of(data).map_err(|why| ProtocolError::NoExport { why: why.to_string() })?;
                return Ok(Some(self.open(name.clone(), Ask::ByName(name))));
            }
            option::ABORT => {
                put_answer(out, option, answer::ACK, 0);
                return Ok(Some(Next::End));
            }
            option::LIST if data.is_empty() => self.list(out),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                put_answer(out, option, answer::ACK, 0);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                put_refusal(out, option, answer::INVALID, "this option has no data");
            }
            option::INFO | option::GO => match ExportAsk::decode(data) {
                Ok(ask) => return Ok(Some(self.open(ask.name.clone(), Ask::Info { option, ask }))),
                Err(malformed) => put_malformed(out, option, &malformed),
            },
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT if !self.structured => {
                put_refusal(out, option, answer::INVALID, "structured replies come first");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => match Contexts::decode(data) {
                Ok(ask) => return Ok(Some(self.open(ask.name.clone(), Ask::Contexts { option, ask }))),
                Err(malformed) => put_malformed(out, option, &malformed),
            },
            unknown => put_refusal(out, unknown, answer::UNSUPPORTED, "not known here"),
        }
        Ok(None)
    }

    fn open(&mut self, name: String, ask: Ask) -> Next {
        self.phase = Phase::Opening(ask);
        Next::Open(name)
    }

    fn list(&self, out: &mut BytesMut) {
        for name in &self.names {
            put_answer(out, option::LIST, answer::SERVER, 4 + name.len());
            out.put_u32(name.len() as u32);
            out.put_slice(name.as_bytes());
        }
        put_answer(out, option::LIST, answer::ACK, 0);
    }

    /// Goes on with what became of the export of [`Next::Open`]. `None` when [`next`](Self::next) is to be called. Errors:
    /// the connection ends. Panics if no export was asked for.
    pub fn opened(
        &mut self,
        found: Result<&ExportInfo, NoExport>,
        out: &mut BytesMut,
    ) -> Result<Option<Terms>, ProtocolError> {
        let Phase::Opening(ask) = std::mem::replace(&mut self.phase, Phase::Option) else {
            unreachable!("no export was asked for");
        };
        match (ask, found) {
            (Ask::ByName(name), Ok(found)) => {
                out.put_u64(found.size_bytes);
                out.put_u16(found.flags(self.structured));
                out.put_bytes(0, if self.padding { PADDING_BYTES } else { 0 });
                Ok(Some(self.terms(&name)))
            }
            (Ask::ByName(_), Err(no)) => Err(ProtocolError::NoExport { why: words(&no) }),
            (Ask::Info { option, ask }, Ok(found)) => {
                put_info(out, option, &ask, found, self.structured);
                put_answer(out, option, answer::ACK, 0);
                Ok((option == option::GO).then(|| self.terms(&ask.name)))
            }
            (Ask::Contexts { option, ask }, Ok(_)) => {
                self.contexts(option, &ask, out);
                Ok(None)
            }
            (Ask::Info { option, .. } | Ask::Contexts { option, .. }, Err(no)) => {
                let kind = match no {
                    NoExport::Unknown(_) => answer::UNKNOWN,
                    NoExport::Shutdown => answer::SHUTDOWN,
                };
                put_refusal(out, option, kind, &words(&no));
                Ok(None)
            }
        }
    }

    /// What was agreed on for the export that was asked for as `name`.
    fn terms(&self, name: &str) -> Terms {
        let status = self.status_of.as_deref() == Some(name);
        Terms { structured: self.structured, status: self.structured && status }
    }

    fn contexts(&mut self, option: u32, ask: &Contexts, out: &mut BytesMut) {
        let lists = option == option::LIST_META_CONTEXT;
        let is_meant = |query: &String| query == ALLOCATION || (lists && query == "base:");
        let chosen = (lists && ask.queries.is_empty()) || ask.queries.iter().any(is_meant);
        if chosen {
            put_answer(out, option, answer::META_CONTEXT, 4 + ALLOCATION.len());
            // A list gives no ids: they are for those that are chosen.
            out.put_u32(if lists { 0 } else { ALLOCATION_ID });
            out.put_slice(ALLOCATION.as_bytes());
        }
        if !lists {
            self.status_of = chosen.then(|| ask.name.clone());
        }
        put_answer(out, option, answer::ACK, 0);
    }
}

fn words(no: &NoExport) -> String {
    match no {
        NoExport::Unknown(why) => why.clone(),
        NoExport::Shutdown => "the server stops".to_owned(),
    }
}

fn name_of(data: &[u8]) -> Result<String, Malformed> {
    if data.len() > NAME_MAX_BYTES {
        return Err(Malformed::TooLong { field: "name", len: data.len(), limit: NAME_MAX_BYTES });
    }
    String::from_utf8(data.to_vec()).map_err(|_| Malformed::NotText { field: "name" })
}

fn put_malformed(out: &mut BytesMut, option: u32, malformed: &Malformed) {
    let kind = match malformed {
        Malformed::TooLong { .. } => answer::TOO_BIG,
        _ => answer::INVALID,
    };
    put_refusal(out, option, kind, &malformed.to_string());
}

fn put_info(out: &mut BytesMut, option: u32, ask: &ExportAsk, found: &ExportInfo, structured: bool) {
    put_answer(out, option, answer::INFO, 12);
    out.put_u16(info::EXPORT);
    out.put_u64(found.size_bytes);
    out.put_u16(found.flags(structured));
    let mut wanted = ask.infos.clone();
    wanted.sort_unstable();
    wanted.dedup();
    for wanted in wanted {
        match wanted {
            info::NAME | info::DESCRIPTION => {
                let text = if wanted == info::NAME { &found.name } else { &found.description };
                put_answer(out, option, answer::INFO, 2 + text.len());
                out.put_u16(wanted);
                out.put_slice(text.as_bytes());
            }
            info::BLOCK_SIZE => {
                put_answer(out, option, answer::INFO, 14);
                out.put_u16(info::BLOCK_SIZE);
                out.put_u32(1);
                out.put_u32(BLOCK_BYTES as u32);
                out.put_u32(PAYLOAD_MAX_BYTES);
            }
            // The export itself is always told; of what is not known nothing is.
            _ => {}
        }
    }
}
