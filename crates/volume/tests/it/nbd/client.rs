//! A client of NBD that asks for one thing at a time, by simple replies.

use std::net::SocketAddr;

use bytes::{Buf, BufMut, BytesMut};
use ithaca_env::Env;
use ithaca_env::net::Conn;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZERO: u16 = 6;
pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;

pub const EPERM: u32 = 1;
pub const ENOSPC: u32 = 28;

/// A connection in transmission.
pub struct Client {
    conn: Conn,
    received: BytesMut,
    cookie: u64,
    /// Bytes of the export.
    pub size_bytes: u64,
    /// What can be done with it.
    pub flags: u16,
}

impl Client {
    /// Opens an export; panics if it is refused.
    pub async fn open(env: &Env, addr: SocketAddr, export: &str) -> Self {
        Self::try_open(env, addr, export).await.expect("the export is there")
    }

    /// Opens an export; `None` if the server ends the connection instead.
    pub async fn try_open(env: &Env, addr: SocketAddr, export: &str) -> Option<Self> {
        Self::greeted(env, addr).await.choose(export).await
    }

    /// The same where other things were asked before.
    pub async fn choose(mut self, export: &str) -> Option<Self> {
        self.conn.writer.push(|out| {
            out.put_slice(b"IHAVEOPT");
            out.put_u32(1);
            out.put_u32(export.len() as u32);
            out.put_slice(export.as_bytes());
        });
        let mut answer = self.take(10).await?;
        (self.size_bytes, self.flags) = (answer.get_u64(), answer.get_u16());
        Some(self)
    }

    /// A connection on which no export was chosen.
    pub async fn greeted(env: &Env, addr: SocketAddr) -> Self {
        let conn = env.connect(addr).await.expect("it listens");
        let mut client = Self { conn, received: BytesMut::new(), cookie: 0, size_bytes: 0, flags: 0 };
        client.take(18).await.expect("a greeting");
        client.conn.writer.push(|out| out.put_u32(3));
        client
    }

    /// Asks what an export is without choosing it. Returns whether it is there.
    pub async fn knows(&mut self, export: &str) -> bool {
        self.name_of(export).await.is_some()
    }

    /// Asks for an export's own name without choosing it. `None` if it is not there.
    pub async fn name_of(&mut self, export: &str) -> Option<String> {
        self.conn.writer.push(|out| {
            out.put_slice(b"IHAVEOPT");
            out.put_u32(6);
            out.put_u32(export.len() as u32 + 8);
            out.put_u32(export.len() as u32);
            out.put_slice(export.as_bytes());
            out.put_u16(1);
            out.put_u16(1);
        });
        let mut name = None;
        loop {
            let mut head = self.take(20).await.expect("an answer");
            head.advance(12);
            let (kind, len) = (head.get_u32(), head.get_u32());
            let mut told = self.take(len as usize).await.expect("all of it");
            // Information, until it ends by an acknowledgement or an error.
            match kind {
                3 if told.get_u16() == 1 => name = Some(String::from_utf8_lossy(&told).into_owned()),
                3 => {}
                kind => return name.filter(|_| kind == 1),
            }
        }
    }

    /// Waits for so many bytes; `None` if the connection ends before.
    async fn take(&mut self, len: usize) -> Option<BytesMut> {
        while self.received.len() < len {
            if !matches!(self.conn.reader.read(&mut self.received).await, Ok(1..)) {
                return None;
            }
        }
        Some(self.received.split_to(len))
    }

    /// Sends a request and does not wait for its answer.
    pub fn send(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) {
        self.cookie += 1;
        let cookie = self.cookie;
        self.conn.writer.push(|out| {
            out.put_u32(0x2560_9513);
            out.put_u16(flags);
            out.put_u16(kind);
            out.put_u64(cookie);
            out.put_u64(offset);
            out.put_u32(len);
            out.put_slice(payload);
        });
    }

    /// Says that it disconnects, and waits until the server has closed the connection.
    pub async fn disconnect(mut self) {
        self.send(2, 0, 0, 0, b"");
        assert!(self.take(1).await.is_none(), "nothing follows");
    }

    /// Sends what is no request.
    pub fn send_senseless(&mut self) {
        self.conn.writer.push(|out| out.put_bytes(7, 64));
    }

    /// Waits for the answer of a request that carries no data: its error. `None` if the connection ends.
    pub async fn answer(&mut self) -> Option<u32> {
        let mut head = self.take(16).await?;
        assert_eq!(head.get_u32(), 0x6744_6698, "a simple reply");
        Some(head.get_u32())
    }

    async fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Result<(), u32> {
        self.send(kind, flags, offset, len, payload);
        match self.answer().await.expect("the connection is there") {
            0 => Ok(()),
            error => Err(error),
        }
    }

    pub async fn write(&mut self, offset: u64, data: &[u8], flags: u16) -> Result<(), u32> {
        self.ask(WRITE, flags, offset, data.len() as u32, data).await
    }

    pub async fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        self.send(READ, 0, offset, len, b"");
        self.read_answer(len).await
    }

    /// Waits for the answer of a read of so many bytes.
    pub async fn read_answer(&mut self, len: u32) -> Result<Vec<u8>, u32> {
        match self.answer().await.expect("the connection is there") {
            0 => {}
            error => return Err(error),
        }
        Ok(self.take(len as usize).await.expect("the connection is there").to_vec())
    }

    pub async fn zero(&mut self, offset: u64, len: u32, flags: u16) -> Result<(), u32> {
        self.ask(ZERO, flags, offset, len, b"").await
    }

    pub async fn trim(&mut self, offset: u64, len: u32) -> Result<(), u32> {
        self.ask(TRIM, 0, offset, len, b"").await
    }

    pub async fn cache(&mut self, offset: u64, len: u32) -> Result<(), u32> {
        self.ask(CACHE, 0, offset, len, b"").await
    }

    pub async fn flush(&mut self) -> Result<(), u32> {
        self.ask(FLUSH, 0, 0, 0, b"").await
    }
}
