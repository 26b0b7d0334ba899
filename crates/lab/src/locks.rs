//! A lock server: the baseline for transactions under two-phase locking.
//!
//! A client has a connection and locks one key after the other, to read or to write; what somebody else has is refused at once, so that nobody
//! waits and nobody deadlocks: who is refused releases everything and aborts. A connection that ends releases what it held. (Wei 5.5.3: "if
//! a transaction cannot acquire all locks, it releases them and aborts".)
//!
//! ```text
//!   request   1 u8 │ key u64   lock to read       answer   1 u8 granted, 0 refused
//!             2 u8 │ key u64   lock to write
//!             3 u8 │ 0 u64     release all
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, BufMut, BytesMut};
use ithaca_env::Env;
use ithaca_env::net::{Conn, NetError, Reader, Writer};

const REQUEST_BYTES: usize = 9;
const LOCK_READ: u8 = 1;
const LOCK_WRITE: u8 = 2;
const RELEASE: u8 = 3;

/// What a lock is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
}

/// Who holds a key.
#[derive(Debug)]
enum Held {
    ByReaders(BTreeSet<u64>),
    ByWriter(u64),
}

/// Who holds what. Pure.
#[derive(Debug, Default)]
struct Table {
    keys: BTreeMap<u64, Held>,
}

impl Table {
    /// Locks a key for an owner, or says that somebody else has it. An owner that has it to read, and is the only one, may write.
    fn lock(&mut self, owner: u64, key: u64, mode: Mode) -> bool {
        let alone = || BTreeSet::from([owner]);
        match (self.keys.get_mut(&key), mode) {
            (None, Mode::Read) => self.keys.insert(key, Held::ByReaders(alone())).is_none(),
            (None, Mode::Write) => self.keys.insert(key, Held::ByWriter(owner)).is_none(),
            (Some(Held::ByWriter(other)), _) => *other == owner,
            (Some(Held::ByReaders(readers)), Mode::Read) => {
                readers.insert(owner);
                true
            }
            (Some(held), Mode::Write) => {
                let is_alone = matches!(held, Held::ByReaders(readers) if *readers == alone());
                if is_alone {
                    *held = Held::ByWriter(owner);
                }
                is_alone
            }
        }
    }

    fn release(&mut self, owner: u64) {
        self.keys.retain(|_, held| match held {
            Held::ByWriter(other) => *other != owner,
            Held::ByReaders(readers) => {
                readers.remove(&owner);
                !readers.is_empty()
            }
        });
    }
}

/// Serves locks at an address for as long as the process lives. Panics if it cannot listen there.
pub async fn serve(env: Env, addr: SocketAddr) {
    let listener = env.listen(addr).expect("a simulated address is free");
    let table: Rc<RefCell<Table>> = Rc::default();
    let mut owner = 0;
    while let Ok(conn) = listener.accept().await {
        owner += 1;
        let table = Rc::clone(&table);
        env.spawn(async move {
            // A connection that is lost is as one that has ended.
            let _ = serve_one(conn, owner, &table).await;
            table.borrow_mut().release(owner);
        });
    }
}

async fn serve_one(conn: Conn, owner: u64, table: &RefCell<Table>) -> Result<(), NetError> {
    let Conn { mut reader, writer } = conn;
    let mut bytes = BytesMut::new();
    while reader.read(&mut bytes).await? > 0 {
        while bytes.len() >= REQUEST_BYTES {
            let (kind, key) = (bytes.get_u8(), bytes.get_u64_le());
            let granted = match kind {
                LOCK_READ => table.borrow_mut().lock(owner, key, Mode::Read),
                LOCK_WRITE => table.borrow_mut().lock(owner, key, Mode::Write),
                RELEASE => {
                    table.borrow_mut().release(owner);
                    true
                }
                // Not this protocol.
                _ => return Ok(()),
            };
            writer.push(|out| out.put_u8(granted.into()));
        }
    }
    Ok(())
}

/// A client: one owner of locks, with one request under way.
pub struct Locks {
    reader: Reader,
    writer: Writer,
    answers: BytesMut,
}

impl Locks {
    /// Connects to a server. Errors: it cannot be reached.
    pub async fn connect(env: &Env, addr: SocketAddr) -> Result<Self, NetError> {
        let Conn { reader, writer } = env.connect(addr).await?;
        Ok(Self { reader, writer, answers: BytesMut::new() })
    }

    /// Locks all of these keys, one after the other. If one is refused everything is released, and the answer is false. Errors: the
    /// connection is lost, and with it all locks.
    pub async fn lock(&mut self, keys: &[u64], mode: Mode) -> Result<bool, NetError> {
        let kind = if mode == Mode::Read { LOCK_READ } else { LOCK_WRITE };
        for &key in keys {
            if !self.ask(kind, key).await? {
                self.release().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Releases everything. Errors as of [`Locks::lock`].
    pub async fn release(&mut self) -> Result<(), NetError> {
        self.ask(RELEASE, 0).await.map(|_| ())
    }

    async fn ask(&mut self, kind: u8, key: u64) -> Result<bool, NetError> {
        self.writer.push(|out| {
            out.put_u8(kind);
            out.put_u64_le(key);
        });
        while self.answers.is_empty() {
            if self.reader.read(&mut self.answers).await? == 0 {
                return Err(NetError::Closed { addr: self.writer.peer_addr() });
            }
        }
        Ok(self.answers.get_u8() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_a_key_and_a_writer_has_it_alone() {
        // A lock that two have is none.
        let mut table = Table::default();
        let mut check = |owner, key, mode, expected: bool| {
            assert_eq!(table.lock(owner, key, mode), expected, "{owner} wants {key} to {mode:?}");
        };
        check(1, 7, Mode::Read, true);
        check(2, 7, Mode::Read, true);
        check(3, 7, Mode::Write, false);
        check(1, 7, Mode::Write, false);
        check(3, 8, Mode::Write, true);
        check(3, 8, Mode::Read, true);
        check(1, 8, Mode::Read, false);
        table.release(2);
        assert!(table.lock(1, 7, Mode::Write), "the only reader may write");
        assert!(!table.lock(2, 7, Mode::Read));
        table.release(1);
        table.release(3);
        assert!(table.keys.is_empty(), "nothing is left");
    }
}
