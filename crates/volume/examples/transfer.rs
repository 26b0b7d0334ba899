//! Moves an amount from one account to another, all of it or nothing, whoever else does the same at the same time.
//!
//!     transfer SOCKET FROM TO AMOUNT
//!
//! An account is a number of 8 bytes in block 0. Only the bytes of the two accounts are read and written, so that transfers
//! between other accounts are not in conflict with this one. `c/examples/transfer.c` is the same program in C.

use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use ithaca_env::real;
use ithaca_volume::socket::{Client, ClientError};
use ithaca_volume::{TxOptions, Version};

const ACCOUNT_BYTES: usize = 16;

/// Moves `amount` from account to account. Returns the version from which on that is so.
pub async fn transfer(client: &Client, from: usize, to: usize, amount: i64) -> Result<Version, ClientError> {
    loop {
        match attempt(client, from, to, amount).await {
            // Somebody was faster: what was read is of the past.
            Err(ClientError::Refused(refusal)) if refusal.status.is_passing() => {}
            ended => return ended,
        }
    }
}

async fn attempt(client: &Client, from: usize, to: usize, amount: i64) -> Result<Version, ClientError> {
    let (tx, _) = client.begin(TxOptions::default()).await?;
    for (account, change) in [(from, -amount), (to, amount)] {
        let at = account * ACCOUNT_BYTES;
        let bytes = tx.read_part(0, at..at + 8).await?;
        let mut balance = [0; 8];
        balance.copy_from_slice(&bytes);
        let balance = i64::from_le_bytes(balance) + change;
        tx.write_part(0, at, Bytes::copy_from_slice(&balance.to_le_bytes())).await?;
    }
    Ok(tx.commit().await?.unwrap_or_default())
}

/// Runs the program.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, from, to, amount] = &arguments[..] else {
        eprintln!("usage: transfer SOCKET FROM TO AMOUNT");
        return ExitCode::from(2);
    };
    let (Ok(from), Ok(to), Ok(amount)) = (from.parse(), to.parse(), amount.parse()) else {
        eprintln!("transfer: accounts and amount are numbers");
        return ExitCode::from(2);
    };
    let moved = real::run(|env| async move {
        let client = Client::connect(&env, Path::new(socket)).await?;
        transfer(&client, from, to, amount).await
    });
    match moved {
        Ok(version) => {
            println!("version {version}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}
