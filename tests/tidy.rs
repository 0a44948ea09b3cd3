//! Keeps the house in the shape that ARCHITECTURE.md describes.
//!
//! Each check is a pure function from sources or manifests to a list of violations, and has a test
//! on small samples that shows that it can fail. The tests at the end run the checks on this
//! repository. Where the shape changes on purpose, change the tables at the top of this file in the
//! same commit.
//!
//! # How it works
//!
//! There is no parser here. [`Source::new`] blanks comments and the contents of strings, so that
//! what remains can be searched for words; a manifest is read line by line. This understands the
//! way this repository is written and not every way in which Rust and TOML can be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a package may depend on. Development dependencies are free, except where a leaf would
/// see what stands above it.
struct Package {
    /// The folder, `""` for the root package.
    folder: &'static str,
    /// Packages of this repository.
    inner: &'static [&'static str],
    /// Crates from outside.
    outer: &'static [&'static str],
}

/// Edges point down: the facade sees all, its parts see the two leaves, the leaves see nobody.
const PACKAGES: &[Package] = &[
    Package {
        folder: "",
        inner: &[
            "roundel-blocking-pool",
            "roundel-executor",
            "roundel-fs",
            "roundel-macros",
            "roundel-net",
            "roundel-process",
            "roundel-reactor",
        ],
        outer: &[],
    },
    Package {
        folder: "executor",
        inner: &["roundel-blocking-pool", "roundel-reactor"],
        outer: &[
            "crossbeam-deque",
            "futures-core",
            "loom",
            "pin-project",
            "rustix",
            "slab",
        ],
    },
    Package {
        folder: "fs",
        inner: &["roundel-blocking-pool", "roundel-reactor"],
        outer: &["futures-core", "pin-project", "rustix"],
    },
    Package {
        folder: "net",
        inner: &["roundel-blocking-pool", "roundel-reactor"],
        outer: &["futures-core", "pin-project", "rustix", "socket2"],
    },
    Package {
        folder: "process",
        inner: &["roundel-blocking-pool", "roundel-reactor"],
        outer: &["futures-core", "pin-project", "rustix", "signal-hook"],
    },
    Package {
        folder: "reactor",
        inner: &[],
        outer: &["bytes", "futures-core", "io-uring", "libc", "slab"],
    },
    Package {
        folder: "blocking-pool",
        inner: &[],
        outer: &["crossbeam-deque", "loom", "rustix"],
    },
    Package {
        folder: "macros",
        inner: &[],
        outer: &["proc-macro2", "quote", "syn"],
    },
];

/// Leaves that are tested without what stands above them.
const LEAVES: &[&str] = &["reactor", "blocking-pool", "macros"];

/// What a leaf must not see, not even in its tests.
const ABOVE_LEAVES: &[&str] = &[
    "roundel",
    "roundel-executor",
    "roundel-fs",
    "roundel-net",
    "roundel-process",
];

/// The packages whose dependencies nobody inherits, so that they are free.
const UNPUBLISHED: &[&str] = &["benches", "testing"];

/// The files that may hold `unsafe` code.
const UNSAFE: &[&str] = &[
    "benches/",
    "executor/src/task/*.rs",
    "reactor/src/address.rs",
    "reactor/src/backend.rs",
    "reactor/src/block.rs",
    "reactor/src/buf.rs",
    "reactor/src/entry.rs",
    "reactor/src/fd.rs",
    "reactor/src/flow.rs",
    "reactor/src/limits.rs",
    "reactor/src/multishot.rs",
    "reactor/src/notify.rs",
    "reactor/src/op.rs",
    "reactor/src/ops/*.rs",
    "reactor/src/request.rs",
    "reactor/src/ring.rs",
    "reactor/src/script.rs",
    "reactor/src/slice.rs",
    "testing/src/*.rs",
    "tests/",
    "reactor/tests/",
    "net/tests/allocations.rs",
];

/// Where an outside crate may be named, so that one file, or few, could replace it.
const NAMED_IN: &[(&str, &[&str])] = &[
    ("bytes", &["reactor/src/buf.rs"]),
    (
        "crossbeam_deque",
        &[
            "blocking-pool/src/atomics.rs",
            "blocking-pool/src/fixed.rs",
            "executor/src/atomics.rs",
        ],
    ),
    (
        "futures_core",
        &[
            "executor/src/",
            "fs/src/",
            "net/src/",
            "process/src/",
            "reactor/src/",
        ],
    ),
    (
        "io_uring",
        &[
            "reactor/src/entry.rs",
            "reactor/src/lifecycle.rs",
            "reactor/src/notify.rs",
            "reactor/src/ops/*.rs",
            "reactor/src/reactor.rs",
            "reactor/src/request.rs",
            "reactor/src/ring.rs",
        ],
    ),
    (
        "libc",
        &[
            "reactor/src/address.rs",
            "reactor/src/backend.rs",
            "reactor/src/entry.rs",
            "reactor/src/fd.rs",
            "reactor/src/lifecycle.rs",
            "reactor/src/limits.rs",
            "reactor/src/notify.rs",
            "reactor/src/op.rs",
            "reactor/src/ops/*.rs",
            "reactor/src/reactor.rs",
            "reactor/src/request.rs",
            "reactor/src/ring.rs",
            "reactor/src/script.rs",
        ],
    ),
    ("loom", &["blocking-pool/src/", "executor/src/"]),
    (
        "pin_project",
        &["executor/src/", "fs/src/", "net/src/", "process/src/"],
    ),
    ("proc_macro2", &["macros/src/"]),
    ("quote", &["macros/src/"]),
    (
        "rustix",
        &[
            "blocking-pool/src/thread.rs",
            "executor/src/affinity.rs",
            "fs/src/",
            "net/src/",
            "process/src/",
        ],
    ),
    ("signal_hook", &["process/src/signal.rs"]),
    ("slab", &["executor/src/", "reactor/src/"]),
    ("socket2", &["net/src/"]),
    ("syn", &["macros/src/"]),
];

/// Where outside crates are free: tests, examples, benchmarks.
const NAMES_ARE_FREE: &[&str] = &["benches/", "examples/", "testing/", "tests/"];

/// What is left behind by unfinished work. (`allow(dead_code, reason = "...")` is not.)
const UNFINISHED: &[&str] = &[
    "todo!",
    "unimplemented!",
    "dbg!",
    "#[ignore",
    "allow(dead_code)",
];

/// The cases of docs/CASES.md are H01 to this.
const LAST_CASE: u32 = 54;

// ---- Sources ----------------------------------------------------------------------------------

/// A Rust file.
struct Source {
    /// From the root of the repository, with `/`.
    path: String,
    text: String,
    /// The text with comments and the contents of strings and characters blanked; as many lines.
    code: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: blank(text),
        }
    }
}

/// A word and where it ends in the code it was found in.
struct Word<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

/// The identifiers, keywords and numbers of blanked code.
fn words(code: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (position, character) in code.char_indices().chain([(code.len(), ' ')]) {
        let in_word = character.is_alphanumeric() || character == '_';
        match (start, in_word) {
            (None, true) => start = Some(position),
            (Some(begin), false) => {
                words.push(Word {
                    text: &code[begin..position],
                    start: begin,
                    end: position,
                });
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Replaces what is not code by spaces, and keeps the line ends.
fn blank(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut position = 0;
    // Ends with the text: each round takes one character or more.
    while position < characters.len() {
        let end = end_of_blank(&characters, position);
        if end > position {
            for character in &characters[position..end] {
                code.push(if *character == '\n' { '\n' } else { ' ' });
            }
            position = end;
        } else {
            code.push(characters[position]);
            position += 1;
        }
    }
    code
}

/// Where the comment, string or character that begins at `start` ends; `start` if none begins.
fn end_of_blank(characters: &[char], start: usize) -> usize {
    let at = |position: usize| characters.get(position).copied();
    let in_word =
        start > 0 && (characters[start - 1].is_alphanumeric() || characters[start - 1] == '_');
    match at(start) {
        Some('/') if at(start + 1) == Some('/') => {
            let line = &characters[start..];
            start + line.iter().position(|c| *c == '\n').unwrap_or(line.len())
        }
        Some('/') if at(start + 1) == Some('*') => end_of_block_comment(characters, start),
        Some('"') => end_of_string(characters, start),
        Some('\'') => end_of_character(characters, start),
        // `r"`, `r#"`, `br#"`, `cr"`: the prefix is blanked with the string. `b"` and `c"` need no
        // care, as their rules are those of a plain string.
        Some('r' | 'b' | 'c') if !in_word => {
            let mut position = start;
            if at(position) != Some('r') {
                position += 1;
            }
            if at(position) != Some('r') {
                return start;
            }
            position += 1;
            let hashes = characters[position..]
                .iter()
                .take_while(|c| **c == '#')
                .count();
            position += hashes;
            if at(position) != Some('"') {
                return start;
            }
            end_of_raw_string(characters, position + 1, hashes)
        }
        _ => start,
    }
}

fn end_of_block_comment(characters: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut position = start;
    while position < characters.len() {
        match characters[position..] {
            ['/', '*', ..] => {
                depth += 1;
                position += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                position += 2;
                if depth == 0 {
                    return position;
                }
            }
            _ => position += 1,
        }
    }
    position
}

fn end_of_string(characters: &[char], start: usize) -> usize {
    let mut position = start + 1;
    while position < characters.len() {
        match characters[position] {
            '\\' => position += 2,
            '"' => return position + 1,
            _ => position += 1,
        }
    }
    characters.len()
}

fn end_of_raw_string(characters: &[char], inside: usize, hashes: usize) -> usize {
    let mut position = inside;
    while position < characters.len() {
        let closing = characters[position] == '"'
            && characters[position + 1..]
                .iter()
                .take_while(|c| **c == '#')
                .count()
                >= hashes;
        position += 1;
        if closing {
            return position + hashes;
        }
    }
    position
}

/// A character, but not a lifetime or a label.
fn end_of_character(characters: &[char], start: usize) -> usize {
    match characters[start + 1..] {
        ['\\', _, ..] => {
            // The escaped character may be a quote; what follows it (`\u{..}`) cannot.
            let after = start + 3;
            let rest = &characters[after..];
            after
                + rest
                    .iter()
                    .position(|c| *c == '\'')
                    .map_or(0, |quote| quote + 1)
        }
        [_, '\'', ..] => start + 3,
        _ => start,
    }
}

/// What may stand before `::` in a path that began earlier.
fn is_word_end(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '>'
}

fn line_of(code: &str, position: usize) -> usize {
    code[..position].matches('\n').count() + 1
}

/// Whether a path is meant by a pattern: a file, a folder with `/` at its end, or `folder/*.rs`.
fn is_meant(pattern: &str, path: &str) -> bool {
    if let Some(folder) = pattern.strip_suffix("*.rs") {
        path.strip_prefix(folder)
            .is_some_and(|name| !name.contains('/') && name.ends_with(".rs"))
    } else if pattern.ends_with('/') {
        path.starts_with(pattern) || is_inner_folder(pattern, path)
    } else {
        path == pattern
    }
}

/// `tests/` means `net/tests/` as well; a folder with a parent of its own means only itself.
fn is_inner_folder(folder: &str, path: &str) -> bool {
    folder.matches('/').count() == 1 && path.contains(&format!("/{folder}"))
}

fn is_listed(patterns: &[&str], path: &str) -> bool {
    patterns.iter().any(|pattern| is_meant(pattern, path))
}

// ---- Checks on sources ------------------------------------------------------------------------

/// `unsafe` stands only in listed files, and these say so at their top.
fn check_unsafe(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let used = first_unsafe(&source.code);
        let allows = source.code.contains("allow(unsafe_code)");
        let allows_at_top = source
            .code
            .lines()
            .any(|line| line.trim() == "#![allow(unsafe_code)]");
        match used {
            Some(line) if !is_listed(UNSAFE, &source.path) => violations.push(format!(
                "{}:{line}: `unsafe` in a file that is not listed for it",
                source.path
            )),
            Some(line) if !allows_at_top => violations.push(format!(
                "{}:{line}: `unsafe` without `#![allow(unsafe_code)]` at the top of the file",
                source.path
            )),
            None if allows => {
                violations.push(format!("{}: allows unsafe code and has none", source.path))
            }
            _ => {}
        }
    }
    violations
}

/// The line of the first `unsafe` that begins something unsafe. `Token![unsafe]` does not.
fn first_unsafe(code: &str) -> Option<usize> {
    let word = words(code).into_iter().find(|word| {
        let after = code[word.end..].trim_start();
        word.text == "unsafe" && after.starts_with(|c: char| c.is_alphabetic() || "{(".contains(c))
    })?;
    Some(line_of(code, word.start))
}

/// Outside crates are named only where the table says so.
fn check_names(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        if is_listed(NAMES_ARE_FREE, &source.path) {
            continue;
        }
        for (name, places) in NAMED_IN {
            if is_listed(places, &source.path) {
                continue;
            }
            if let Some(line) = first_use_of(&source.code, name) {
                violations.push(format!("{}:{line}: names `{name}`", source.path));
            }
        }
    }
    violations
}

/// The line of the first use of a crate: `name::`, `use name`, `extern crate name`. A variable or
/// a field of that name is none, nor is a module of another crate (`other::name::`).
fn first_use_of(code: &str, name: &str) -> Option<usize> {
    let word = words(code).into_iter().find(|word| {
        if word.text != name {
            return false;
        }
        let before = code[..word.start].trim_end();
        let (before, begins_path) = match before.strip_suffix("::") {
            // `::name` is the crate, `other::name` is not.
            Some(rest) => (rest.trim_end(), !rest.ends_with(is_word_end)),
            None => (before, true),
        };
        let is_path = code[word.end..].trim_start().starts_with("::");
        let is_imported = before.ends_with("use") || before.ends_with("extern crate");
        begins_path && (is_path || is_imported)
    })?;
    Some(line_of(code, word.start))
}

/// Nothing unfinished is left in the code.
fn check_unfinished(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        for sign in UNFINISHED {
            if let Some(position) = source.code.find(sign) {
                let line = line_of(&source.code, position);
                violations.push(format!("{}:{line}: `{sign}`", source.path));
            }
        }
    }
    violations
}

/// Each file says first what it is for; attributes of the file may stand before.
fn check_first_line(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let mut lines = source.text.lines().map(str::trim);
        let first = lines.find(|line| !may_stand_before_doc(line));
        if !first.is_some_and(|line| line.starts_with("//! ") || line.starts_with("#![doc")) {
            violations.push(format!(
                "{}: does not begin with a `//!` line that says what it is for",
                source.path
            ));
        }
    }
    violations
}

fn may_stand_before_doc(line: &str) -> bool {
    line.is_empty() || (line.starts_with("#![") && !line.starts_with("#![doc"))
}

/// Each case has one row in the table of cases, and no source cites a case that has none.
fn check_cases(cases: &str, sources: &[Source]) -> Vec<String> {
    let mut rows: BTreeMap<u32, usize> = BTreeMap::new();
    for line in cases.lines() {
        let first_cell = line
            .strip_prefix("| ")
            .and_then(|row| row.split(' ').next());
        if let Some(number) = first_cell.and_then(case_number) {
            *rows.entry(number).or_default() += 1;
        }
    }
    let mut violations = Vec::new();
    for number in 1..=LAST_CASE {
        let count = rows.get(&number).copied().unwrap_or(0);
        if count != 1 {
            violations.push(format!("docs/CASES.md: H{number:02} has {count} rows"));
        }
    }
    for source in sources {
        // In the whole text: cases are cited in comments and in the names of tests.
        for word in words(&source.text) {
            let cited = word.text.split('_').find_map(case_number);
            if let Some(number) = cited.filter(|number| !rows.contains_key(number)) {
                let line = line_of(&source.text, word.start);
                violations.push(format!(
                    "{}:{line}: cites H{number:02}, which docs/CASES.md does not have",
                    source.path
                ));
            }
        }
    }
    violations
}

/// The number in `H07` or `h07`.
fn case_number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix(['H', 'h'])?;
    if digits.len() != 2 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

// ---- Manifests --------------------------------------------------------------------------------

/// A package's Cargo.toml.
struct Manifest {
    /// The folder it lies in, `""` for the root.
    folder: String,
    dependencies: Vec<String>,
    dev_dependencies: Vec<String>,
    inherits_lints: bool,
}

impl Manifest {
    fn new(folder: &str, text: &str) -> Self {
        let mut manifest = Self {
            folder: folder.to_owned(),
            dependencies: Vec::new(),
            dev_dependencies: Vec::new(),
            inherits_lints: false,
        };
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
                section = name.to_owned();
                // `[dependencies.name]` is a section of its own.
                if let Some((parent, name)) = name.rsplit_once("dependencies.") {
                    manifest.add(&format!("{parent}dependencies"), name);
                }
                continue;
            }
            let key = line.split(['=', '.']).next().unwrap_or(line).trim();
            manifest.add(&section, key.trim_matches('"'));
            if section == "lints" && line.replace(' ', "") == "workspace=true" {
                manifest.inherits_lints = true;
            }
        }
        manifest
    }

    fn add(&mut self, section: &str, name: &str) {
        // `[workspace.dependencies]` are versions, not edges.
        if section.starts_with("workspace") {
            return;
        }
        let last = section.rsplit('.').next().unwrap_or(section);
        match last {
            "dependencies" | "build-dependencies" => self.dependencies.push(name.to_owned()),
            "dev-dependencies" => self.dev_dependencies.push(name.to_owned()),
            _ => {}
        }
    }
}

/// Edges among the packages point down only, and outside crates are the ones chosen.
fn check_edges(manifests: &[Manifest]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in manifests {
        let folder = manifest.folder.as_str();
        if UNPUBLISHED.contains(&folder) {
            continue;
        }
        let Some(package) = PACKAGES.iter().find(|package| package.folder == folder) else {
            violations.push(format!(
                "{folder}: a package that tests/tidy.rs does not know"
            ));
            continue;
        };
        for name in &manifest.dependencies {
            let allowed = if is_inner(name) {
                package.inner
            } else {
                package.outer
            };
            if !allowed.contains(&name.as_str()) {
                violations.push(format!("`{folder}` may not depend on {name}"));
            }
        }
        for name in &manifest.dev_dependencies {
            if LEAVES.contains(&folder) && ABOVE_LEAVES.contains(&name.as_str()) {
                violations.push(format!("`{folder}` is tested without {name}"));
            }
        }
    }
    violations
}

/// Every package takes the lints of the workspace.
fn check_lints(manifests: &[Manifest]) -> Vec<String> {
    manifests
        .iter()
        .filter(|manifest| !manifest.inherits_lints)
        .map(|manifest| format!("`{}` does not take the workspace's lints", manifest.folder))
        .collect()
}

fn is_inner(name: &str) -> bool {
    name == "roundel" || name.starts_with("roundel-")
}

// ---- The checks on this repository ------------------------------------------------------------

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files whose names satisfy `wanted`, by their paths from the root, in order.
fn files(wanted: fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().to_path_buf()];
    // Ends with the tree: build output and hidden folders are left out, links are not followed.
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository can be read") {
            let entry = entry.expect("an entry of a folder can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("an entry has a type");
            let path = entry.path();
            if kind.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if kind.is_file() && wanted(&name) {
                let text = fs::read_to_string(&path).expect("a source is text");
                let relative = path
                    .strip_prefix(root())
                    .expect("the walk begins at the root");
                found.push((relative.to_string_lossy().into_owned(), text));
            }
        }
    }
    found.sort();
    found
}

fn repository_sources() -> Vec<Source> {
    let files = files(|name| name.ends_with(".rs"));
    assert!(files.len() > 20, "the walk does not see the repository");
    files
        .iter()
        .map(|(path, text)| Source::new(path, text))
        .collect()
}

fn repository_manifests() -> Vec<Manifest> {
    let files = files(|name| name == "Cargo.toml");
    let manifests: Vec<Manifest> = files
        .iter()
        .map(|(path, text)| {
            let folder = path.trim_end_matches("Cargo.toml").trim_end_matches('/');
            Manifest::new(folder, text)
        })
        .collect();
    for package in PACKAGES {
        assert!(
            manifests
                .iter()
                .any(|manifest| manifest.folder == package.folder),
            "the package `{}` has no manifest",
            package.folder
        );
    }
    manifests
}

fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

// Crates see each other, and the outside, only as the table of packages says.
#[test]
fn edges_point_down() {
    assert_none(check_edges(&repository_manifests()));
}

// No package escapes the lints.
#[test]
fn lints_are_inherited() {
    assert_none(check_lints(&repository_manifests()));
}

// Unsafe code stands in few, known files.
#[test]
fn unsafe_stands_where_it_is_listed() {
    assert_none(check_unsafe(&repository_sources()));
}

// Outside crates can be replaced in few, known files.
#[test]
fn outside_crates_are_named_where_listed() {
    assert_none(check_names(&repository_sources()));
}

// Nothing unfinished, switched off or dead is left.
#[test]
fn nothing_is_unfinished() {
    assert_none(check_unfinished(&repository_sources()));
}

// A reader of any file learns first what it is for.
#[test]
fn files_say_what_they_are_for() {
    assert_none(check_first_line(&repository_sources()));
}

// Citations of cases lead somewhere.
#[test]
fn cited_cases_exist() {
    let cases = fs::read_to_string(root().join("docs/CASES.md")).expect("the cases are documented");
    assert_none(check_cases(&cases, &repository_sources()));
}

// ---- The checks can fail ----------------------------------------------------------------------

fn violations_of(check: fn(&[Source]) -> Vec<String>, path: &str, text: &str) -> usize {
    check(&[Source::new(path, text)]).len()
}

// Comments, strings and characters are blanked, code and line ends stay.
#[test]
fn blanking_keeps_code() {
    for (text, code) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        ("f(\"x\\\"y\", z)", "f(      , z)"),
        ("r\"\\\" x", "     x"),
        ("r#\"a\"b\"# c", "         c"),
        ("br##\"a\"#b\"## c", "             c"),
        ("b\"x\" y", "b    y"),
        ("car\"x\"", "car   "),
        ("'a' 'b", "    'b"),
        ("'\\'' x", "     x"),
        ("'\\u{1f}' x", "         x"),
        ("'\"' x \"y\"", "    x    "),
        ("fn f<'a>(s: &'a str)", "fn f<'a>(s: &'a str)"),
        ("\"open\n", "     \n"),
    ] {
        assert_eq!(blank(text), code, "{text}");
    }
}

// A pattern means a file, a folder, or the files of one folder.
#[test]
fn patterns_mean_paths() {
    assert!(is_meant("fs/src/file.rs", "fs/src/file.rs"));
    assert!(!is_meant("fs/src/file.rs", "fs/src/file.rs.rs"));
    assert!(is_meant("reactor/src/ops/*.rs", "reactor/src/ops/file.rs"));
    assert!(!is_meant(
        "reactor/src/ops/*.rs",
        "reactor/src/ops/deep/file.rs"
    ));
    assert!(!is_meant("reactor/src/ops/*.rs", "reactor/src/ops.rs"));
    assert!(is_meant("net/src/", "net/src/tcp/stream.rs"));
    assert!(!is_meant("net/src/", "other/net/src/lib.rs"));
    assert!(is_meant("tests/", "tests/tidy.rs"));
    assert!(is_meant("tests/", "net/tests/accept.rs"));
    assert!(!is_meant("tests/", "net/src/tests.rs"));
}

#[test]
fn unsafe_check_can_fail() {
    let allowed = "#![allow(unsafe_code)]\n//! X.\nfn f() { unsafe { g() } }";
    assert_eq!(
        violations_of(check_unsafe, "reactor/src/ring.rs", allowed),
        0
    );
    assert_eq!(violations_of(check_unsafe, "net/src/lib.rs", allowed), 1);
    for code in [
        "unsafe fn f() {}",
        "unsafe impl Send for X {}",
        "unsafe trait T {}",
        "unsafe extern \"C\" {}",
        "#[unsafe(no_mangle)] fn f() {}",
        "fn f() { unsafe\n{ g() } }",
    ] {
        assert_eq!(
            violations_of(check_unsafe, "net/src/lib.rs", code),
            1,
            "{code}"
        );
        assert_eq!(
            violations_of(check_unsafe, "reactor/src/ring.rs", code),
            1,
            "{code}"
        );
    }
    for code in [
        "// unsafe { g() }",
        "const S: &str = \"unsafe { g() }\";",
        "type T = Token![unsafe];",
        "fn unsafe_looking() {}",
    ] {
        assert_eq!(
            violations_of(check_unsafe, "net/src/lib.rs", code),
            0,
            "{code}"
        );
    }
    let needless = "#![allow(unsafe_code)]\n//! X.";
    assert_eq!(
        violations_of(check_unsafe, "reactor/src/ring.rs", needless),
        1
    );
    let local = "#[allow(unsafe_code)]\nfn f() { unsafe { g() } }";
    assert_eq!(violations_of(check_unsafe, "reactor/src/ring.rs", local), 1);
}

#[test]
fn name_check_can_fail() {
    for code in [
        "use libc::c_int;",
        "fn f() { libc::getpid(); }",
        "use ::libc;",
        "extern crate libc;",
        "fn f() { ::libc::getpid(); }",
        "use {std::io, libc::c_int};",
    ] {
        assert_eq!(
            violations_of(check_names, "net/src/lib.rs", code),
            1,
            "{code}"
        );
        assert_eq!(
            violations_of(check_names, "reactor/src/ring.rs", code),
            0,
            "{code}"
        );
        assert_eq!(
            violations_of(check_names, "net/tests/a.rs", code),
            0,
            "{code}"
        );
    }
    for code in [
        "// libc::getpid",
        "fn f(libc: u8) { self.libc.get() }",
        "use other::libc::c_int;",
        "use libcurl::easy;",
    ] {
        assert_eq!(
            violations_of(check_names, "net/src/lib.rs", code),
            0,
            "{code}"
        );
    }
    let lane = "use crossbeam_deque::Injector;";
    assert_eq!(
        violations_of(check_names, "executor/src/atomics.rs", lane),
        0
    );
    assert_eq!(violations_of(check_names, "executor/src/inbox.rs", lane), 1);
}

#[test]
fn unfinished_check_can_fail() {
    for code in [
        "fn f() { todo!() }",
        "fn f() { unimplemented!(\"later\") }",
        "fn f() { dbg!(1); }",
        "#[test]\n#[ignore]\nfn f() {}",
        "#[ignore = \"slow\"]\nfn f() {}",
        "#[allow(dead_code)]\nfn f() {}",
    ] {
        assert_eq!(
            violations_of(check_unfinished, "src/lib.rs", code),
            1,
            "{code}"
        );
    }
    let told = "// no todo! here\nconst S: &str = \"dbg!\";";
    assert_eq!(violations_of(check_unfinished, "src/lib.rs", told), 0);
}

#[test]
fn first_line_check_can_fail() {
    for text in [
        "//! Says it.\nfn f() {}",
        "#![allow(unsafe_code)]\n//! Says it.",
        "#![doc = include_str!(\"../README.md\")]",
    ] {
        assert_eq!(
            violations_of(check_first_line, "src/lib.rs", text),
            0,
            "{text}"
        );
    }
    for text in [
        "",
        "//!\n",
        "// A comment.\n//! Late.",
        "use std::io;\n//! Late.",
        "#![allow(unsafe_code)]\nfn f() {}",
    ] {
        assert_eq!(
            violations_of(check_first_line, "src/lib.rs", text),
            1,
            "{text}"
        );
    }
}

#[test]
fn case_check_can_fail() {
    let table = |cases: &[u32]| -> String {
        let rows = cases
            .iter()
            .map(|number| format!("| H{number:02} ★ | x | y |\n"));
        format!("| case | a | b |\n{}", rows.collect::<String>())
    };
    let all: Vec<u32> = (1..=LAST_CASE).collect();
    let source = |text: &str| [Source::new("tests/regressions.rs", text)];
    // Put together here, as this file is checked, too.
    let unknown = format!("// H{}", LAST_CASE + 1);
    let unknown_in_name = format!("fn h{}_unknown() {{}}", LAST_CASE + 1);

    assert!(
        check_cases(
            &table(&all),
            &source("// H07, H54\nfn h01_dropped_read() {}")
        )
        .is_empty()
    );
    assert_eq!(check_cases(&table(&all[1..]), &source("")).len(), 1);
    assert_eq!(
        check_cases(&table(&[&all[..], &[9]].concat()), &source("")).len(),
        1
    );
    assert_eq!(check_cases(&table(&all), &source(&unknown)).len(), 1);
    assert_eq!(
        check_cases(&table(&all), &source(&unknown_in_name)).len(),
        1
    );
    assert!(check_cases(&table(&all), &source("// H100, SH55, H5")).is_empty());
}

#[test]
fn edge_check_can_fail() {
    let violations = |folder: &str, text: &str| check_edges(&[Manifest::new(folder, text)]).len();

    let up = "[dependencies]\nroundel-executor.workspace = true";
    assert_eq!(violations("fs", up), 1);
    assert_eq!(violations("reactor", up), 1);
    assert_eq!(violations("", up), 0);
    assert_eq!(violations("testing", up), 0);
    let down = "[dependencies]\nroundel-reactor = { workspace = true }";
    assert_eq!(violations("fs", down), 0);
    assert_eq!(violations("macros", down), 1);
    assert_eq!(violations("blocking-pool", down), 1);

    let outside = "[dependencies]\nserde = \"1\"";
    assert_eq!(violations("", outside), 1);
    assert_eq!(violations("net", outside), 1);
    assert_eq!(
        violations("net", "[dependencies.serde]\nversion = \"1\""),
        1
    );
    assert_eq!(violations("net", "[build-dependencies]\ncc = \"1\""), 1);
    assert_eq!(
        violations("net", "[target.\"cfg(loom)\".dependencies]\nloom = \"1\""),
        1
    );
    assert_eq!(
        violations(
            "executor",
            "[target.\"cfg(loom)\".dependencies]\nloom = \"1\""
        ),
        0
    );
    assert_eq!(violations("net", "[dev-dependencies]\nserde = \"1\""), 0);
    assert_eq!(violations("", "[workspace.dependencies]\nserde = \"1\""), 0);

    let tested_with = "[dev-dependencies]\nroundel-executor.workspace = true";
    assert_eq!(violations("fs", tested_with), 0);
    assert_eq!(violations("reactor", tested_with), 1);

    assert_eq!(violations("surprise", ""), 1);
}

#[test]
fn lint_check_can_fail() {
    let violations = |text: &str| check_lints(&[Manifest::new("fs", text)]).len();
    assert_eq!(violations("[lints]\nworkspace = true"), 0);
    assert_eq!(violations("[lints]\nworkspace = false"), 1);
    assert_eq!(violations("[package]\nname = \"x\""), 1);
}
