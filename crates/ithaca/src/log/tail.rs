//! `ithaca log tail`: entries in order, pushed by the units as they become readable.

use ithaca_log::pos::LogPos;

use super::read;
use crate::cli::Global;
use crate::client::with_client;
use crate::failure::Failure;
use crate::output::{Output, while_read};

/// Prints entries from `from` on (the lowest position that is not trimmed, if it is not given), each ended by a newline:
/// up to the tail, or for ever with `follow`.
pub fn run(global: &Global, follow: bool, from: Option<LogPos>, out: &mut Output) -> Result<(), Failure> {
    let first = match from {
        Some(from) => from,
        None => with_client(global, "log tail", async |_, client| Ok(client.check().await?.first))?,
    };
    if !follow {
        return read::range(global, first, None, true, out);
    }
    with_client(global, "log tail", async |env, client| {
        let mut tailing = client.tail_from(first);
        let following = async {
            loop {
                for entry in tailing.next().await? {
                    read::print(&entry, true, out)?;
                }
                out.flush()?;
            }
        };
        while_read(&env, following).await
    })
}
