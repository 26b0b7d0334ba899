//! What the network soak stands on: a network and mounts that nobody else has, which go with this process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the process that has its own.
const APART: &str = "ITHACA_LAB_APART";

/// The programs that are needed, each with its package in Debian.
const PROGRAMS: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("fsfreeze", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
];

/// Goes on in a process that has a network and mounts of its own: this one, which becomes it. Returns there.
///
/// Whatever that process makes of both is gone when it and its children are, however they end. Errors: it is not possible
/// here, and why.
pub fn enter() -> io::Result<()> {
    if std::env::var_os(APART).is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other("networks of their own are made by root only"));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &str| std::env::split_paths(&folders).any(|folder| folder.join(program).exists());
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _)| !is_there(program)).collect();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
        let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
        let (names, packages) = (names.join(" "), packages.join(" "));
        return Err(io::Error::other(format!("needs {names}: run  apt-get install -y {packages}")));
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).arg(std::env::current_exe()?);
    let error = command.args(std::env::args_os().skip(1)).env(APART, "1").exec();
    Err(io::Error::other(format!("unshare: {error}")))
}
