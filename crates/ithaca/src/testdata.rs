//! Expected outputs of tests, kept in `testdata/`.

/// Compares `actual` with `testdata/{name}`. With `REWRITE=1` in the environment the file becomes `actual`; the change is
/// then reviewed as a diff.
#[expect(clippy::disallowed_methods, reason = "a test reads its own expected output")]
pub(crate) fn check(name: &str, actual: &str) {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::write(&path, actual).expect("testdata can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == actual,
        "{path}: expected\n{expected}\nfound\n{actual}\nREWRITE=1 accepts the change"
    );
}
