//! A cluster in a child process, commands against it, and what they printed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use base64::Engine;

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ran {
    /// Its standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("text")
    }

    /// Its lines as positions.
    pub fn positions(&self) -> Vec<u64> {
        self.text().lines().map(|line| line.parse().expect("a position")).collect()
    }

    /// Panics unless it ended with `code`, and, when that is a failure, with one line on stderr.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        let lines = if code == 0 { 0 } else { 1 };
        assert_eq!(self.stderr.lines().count(), lines, "{self:?}");
        self
    }
}

/// The program, with nothing set in its environment, in a directory without a settings file.
pub fn ithaca(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ithaca"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ITHACA")) {
        command.env_remove(name);
    }
    command.args(arguments).current_dir(std::env::temp_dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command with `input` on its standard input.
pub fn run(mut command: Command, input: &[u8]) -> Ran {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        // The program may end before it has read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("no panic");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), stdout: output.stdout, stderr }
}

/// Runs a server that is to be refused. Panics if it serves.
pub fn run_refused(mut command: Command) -> Ran {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut ready).expect("its output is open");
    if !ready.is_empty() {
        // It may have ended already.
        let _ = child.kill();
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(ready, "", "it serves");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ran { code: output.status.code(), stdout: Vec::new(), stderr }
}

/// A cluster that runs until it is dropped.
pub struct Dev {
    pub child: Child,
    pub stdout: BufReader<ChildStdout>,
    pub ready: String,
    pub log: String,
    pub http: String,
}

impl Dev {
    /// Starts a cluster on free ports, with its data in `dir`, and waits until it serves.
    pub fn start(dir: &std::path::Path, more: &[&str]) -> Self {
        let mut command = dev_command(dir, more);
        let mut child = command.stderr(Stdio::inherit()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        stdout.read_line(&mut ready).expect("its output is open");
        let (log, http) = (string_field(&ready, "log"), string_field(&ready, "http"));
        Self { child, stdout, ready, log, http }
    }

    /// A client command against this cluster.
    pub fn command(&self, line: &str) -> Command {
        let mut command = ithaca(&["--endpoint", &self.log]);
        // A busy machine is no failure; a test that waits for one says how long by a flag.
        command.env("ITHACA_TIMEOUT", "30s").args(line.split_whitespace());
        command
    }

    /// Runs a client command with this input.
    pub fn feed(&self, line: &str, input: &[u8]) -> Ran {
        run(self.command(line), input)
    }

    /// Runs a client command.
    pub fn run(&self, line: &str) -> Ran {
        self.feed(line, b"")
    }

    /// Asks it to stop, and returns its exit code and what else it printed.
    pub fn stop(mut self) -> (Option<i32>, String) {
        signal(&self.child, "TERM");
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("its output is text");
        (self.child.wait().expect("it ends").code(), rest)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ithaca dev` on free ports.
pub fn dev_command(dir: &std::path::Path, more: &[&str]) -> Command {
    let data = dir.to_str().expect("text");
    let mut command = ithaca(&["dev", "--json", "--data", data, "--drive-size", "64M"]);
    if !more.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(["--http", "127.0.0.1:0"]).args(more);
    command
}

/// What a page at `http` answers.
pub fn get(http: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(http).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {http}\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

/// Sends a signal by name.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(sent.expect("kill is there").success());
}

/// An address at which nobody listens.
pub fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").to_string()
}

/// A fresh directory.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// The string `key` of a JSON object in one line, which has no escapes.
pub fn string_field(json: &str, key: &str) -> String {
    let start = format!("\"{key}\":\"");
    let at = json.find(&start).unwrap_or_else(|| panic!("no {key} in {json}")) + start.len();
    json[at..].split('"').next().unwrap_or_default().to_owned()
}

/// The whole number `key` of a JSON object in one line.
pub fn number_field(json: &str, key: &str) -> u64 {
    let start = format!("\"{key}\":");
    let at = json.find(&start).unwrap_or_else(|| panic!("no {key} in {json}")) + start.len();
    let digits: String = json[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number {key} in {json}"))
}

/// Position, kind and data of an entry as `--json` prints it.
pub fn entry(line: &str) -> (u64, String, Vec<u8>) {
    let data = base64::engine::general_purpose::STANDARD.decode(string_field(line, "data_base64"));
    (number_field(line, "pos"), string_field(line, "kind"), data.expect("base64"))
}
