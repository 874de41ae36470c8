//! The kernels that a file declares: `KERNEL void name(u64 i, float a, const float *x, float *y)`.

/// A kernel: its name, and its parameters without the element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The file, as the build script named it.
    pub(crate) file: String,
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// The type of the number, or of the elements, in C++.
    pub(crate) c: &'static str,
    /// And in Rust.
    pub(crate) rust: &'static str,
    pub(crate) kind: Kind,
}

/// What a parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The same for every element.
    Number,
    /// A `const` pointer.
    Reads,
    /// A `Whole`: any element of it may be read.
    ReadsWhole,
    /// Another pointer.
    Writes,
}

/// The types that C++ and Rust lay out alike.
const TYPES: [(&str, &str); 14] = [
    ("f16", "::warpool::half::f16"),
    ("bf16", "::warpool::half::bf16"),
    ("float", "f32"),
    ("double", "f64"),
    ("int", "i32"),
    ("unsigned", "u32"),
    ("u64", "u64"),
    ("int8_t", "i8"),
    ("uint8_t", "u8"),
    ("int16_t", "i16"),
    ("uint16_t", "u16"),
    ("int32_t", "i32"),
    ("uint32_t", "u32"),
    ("int64_t", "i64"),
];

/// The kernels of a file.
///
/// # Errors
/// A declaration that cannot be called from Rust, with the file, its line and what is expected; none at all.
pub(crate) fn find(file: &str, text: &str) -> Result<Vec<Kernel>, String> {
    let text = code_alone(text);
    let mut kernels = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find("KERNEL") {
        let at = from + at;
        from = at + "KERNEL".len();
        let line = 1 + text[..at].matches('\n').count();
        let before = text[..at].rsplit('\n').next().unwrap_or_default();
        let is_part = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let is_macro = before.trim_start().starts_with('#');
        if is_part || is_macro || !text[from..].starts_with(char::is_whitespace) {
            continue;
        }
        let kernel = declaration(&text[from..]);
        let (name, parameters) = kernel.map_err(|why| format!("{file}:{line}: {why}"))?;
        kernels.push(Kernel {
            file: file.to_owned(),
            name,
            parameters,
        });
    }
    if kernels.is_empty() {
        return Err(format!(
            "{file} declares no kernel: write KERNEL void name(u64 i, const float *x, float *y) {{ ... }}"
        ));
    }
    Ok(kernels)
}

/// Two kernels of one name would be one function.
pub(crate) fn no_name_twice(kernels: &[Kernel]) -> Result<(), String> {
    for (at, kernel) in kernels.iter().enumerate() {
        if let Some(first) = kernels[..at].iter().find(|first| first.name == kernel.name) {
            let (name, file, again) = (&kernel.name, &first.file, &kernel.file);
            return Err(format!("{again}: the kernel {name} is in {file} already"));
        }
    }
    Ok(())
}

/// The text with comments and quoted text blanked, its lines where they were.
fn code_alone(text: &str) -> String {
    const BEGINS: [&str; 5] = ["//", "/*", "\"", "'\"'", "'\\\"'"];
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    let begin = |rest: &str| BEGINS.iter().filter_map(|it| rest.find(it)).min();
    while let Some(at) = begin(rest) {
        let (before, skipped) = rest.split_at(at);
        made.push_str(before);
        made.push(' '); // a comment parts two words
        let end = match &skipped[..1] {
            "\"" => 1 + quoted(&skipped[1..]),
            "'" => 3 + usize::from(skipped.starts_with("'\\")),
            _ if skipped.starts_with("//") => skipped.find('\n').unwrap_or(skipped.len()),
            _ => skipped.find("*/").map_or(skipped.len(), |end| end + 2),
        };
        let (skipped, after) = skipped.split_at(end);
        made.extend(skipped.chars().filter(|c| *c == '\n'));
        rest = after;
    }
    made + rest
}

/// Bytes of the text up to behind the quote that ends it, or to the end of its line.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|c| {
        let ends = c == '\n' || (c == '"' && !escaped);
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| {
        end + usize::from(text[end..].starts_with('"'))
    })
}

/// `void name(u64 i, ...)`, and whatever follows.
fn declaration(text: &str) -> Result<(String, Vec<Parameter>), String> {
    const FORM: &str = "a kernel is declared as KERNEL void name(u64 i, ...)";
    let (head, rest) = text.split_once('(').ok_or(FORM)?;
    let (inside, _) = rest.split_once(')').ok_or(FORM)?;
    let mut head = head.split_whitespace();
    let (Some("void"), Some(name), None) = (head.next(), head.next(), head.next()) else {
        return Err(FORM.to_owned());
    };
    let mut parameters = inside.split(',').map(str::trim);
    let first: Vec<&str> = parameters
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    if first.len() != 2 || first[0] != "u64" || !is_name(name) {
        return Err(format!("{FORM}: `i` is the element"));
    }
    let parameters: Vec<Parameter> = parameters.map(parameter).collect::<Result<_, _>>()?;
    if parameters
        .iter()
        .all(|parameter| parameter.kind != Kind::Writes)
    {
        return Err(format!(
            "`{name}` writes nothing: it has no pointer that is not const"
        ));
    }
    Ok((name.to_owned(), parameters))
}

/// `float a`, `const float *x`, `Whole<float> w`, `float *y`.
fn parameter(text: &str) -> Result<Parameter, String> {
    let spaced = text.replace('*', " * ");
    let spaced = spaced.replace('<', " < ").replace('>', " > ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (constant, words) = match words.split_first() {
        Some((&"const", rest)) => (true, rest),
        _ => (false, &words[..]),
    };
    let (kind, c, name) = match words {
        [c, "*", name] if constant => (Kind::Reads, c, name),
        ["Whole", "<", c, ">", name] if !constant => (Kind::ReadsWhole, c, name),
        [c, "*", name] => (Kind::Writes, c, name),
        [c, name] if !constant => (Kind::Number, c, name),
        _ => {
            return Err(format!(
                "`{text}` is no parameter of a kernel: write a number (float a), what is read at the \
                 element (const float *x) or anywhere (Whole<float> x), or what is written (float *y)"
            ));
        }
    };
    let known = TYPES.iter().find(|(known, _)| known == c);
    let (Some((c, rust)), true) = (known, is_name(name)) else {
        let types: Vec<&str> = TYPES.iter().map(|(known, _)| *known).collect();
        let types = types.join(", ");
        return Err(format!(
            "`{text}`: the types of a kernel's parameters are {types}"
        ));
    };
    Ok(Parameter {
        name: (*name).to_owned(),
        c,
        rust,
        kind,
    })
}

/// Whether C++ and Rust both take it for a name, and neither for a word of its own.
fn is_name(text: &str) -> bool {
    const TAKEN: [&str; 35] = [
        "Self", "abstract", "as", "async", "await", "become", "box", "crate", "dyn", "final", "fn",
        "gen", "impl", "in", "let", "loop", "macro", "match", "mod", "move", "mut", "override",
        "priv", "pub", "ref", "self", "super", "trait", "type", "typeof", "unsafe", "unsized",
        "use", "where", "yield",
    ];
    // Names that the generated functions have themselves.
    if text == "stream" || text.starts_with("wp_") {
        return false;
    }
    let mut letters = text.chars();
    letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !TAKEN.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_begins_no_comment() {
        for quoted in [
            "\"/*\"",
            "\"\\\"//\"",
            "\"\\\\\"",
            "'\"'",
            "'\\\"'",
            "\"//\"",
            "1'000",
        ] {
            let first = format!("KERNEL void a(u64 i, int *y) {{ f({quoted}); }} /*\n");
            let no = "KERNEL void no(u64 i, int *y) {}\n*/\n";
            let text = first + no + "KERNEL void b(u64 i, int *y) {}\n";
            let found = find("k.cu", &text).expect(quoted);
            let names: Vec<&str> = found.iter().map(|kernel| &kernel.name[..]).collect();
            assert_eq!(names, ["a", "b"], "{quoted}");
        }
    }

    #[test]
    fn a_kernel_is_found_wherever_on_its_line_it_begins() {
        let text = "KERNEL void a(u64 i, int *y) {} KERNEL void b(u64 i, int *y) {}\n\
                    int x;KERNEL void c(u64 i, int *y) {}\n#define KERNEL static\n  # define A KERNEL void\n\
                    MY_KERNEL int d(); MYKERNEL int e(); KERNELS f();\n";
        let found = find("k.cu", text).expect("kernels");
        let names: Vec<&str> = found.iter().map(|kernel| &kernel.name[..]).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_declaration_says_what_is_read_and_what_is_written() {
        let text = "// KERNEL void no(u64 i)\n/* KERNEL void\n no */\n#include <x>\n\
                    KERNEL/**/void saxpy(u64 i, float/* factor */a,\n   const float* x, Whole< f16 >w, int32_t *y) {}\n\
                    MY_KERNEL void other();\nKERNEL void two(u64 i, double *z) { /* , */ }\n";
        let found = find("k.cu", text).expect("kernels");
        let names: Vec<&str> = found.iter().map(|kernel| &kernel.name[..]).collect();
        assert_eq!(names, ["saxpy", "two"]);
        let parameters = &found[0].parameters;
        let told: Vec<_> = parameters
            .iter()
            .map(|p| (&p.name[..], p.rust, p.kind))
            .collect();
        assert_eq!(
            told,
            [
                ("a", "f32", Kind::Number),
                ("x", "f32", Kind::Reads),
                ("w", "::warpool::half::f16", Kind::ReadsWhole),
                ("y", "i32", Kind::Writes)
            ]
        );
        assert!(no_name_twice(&found).is_ok());
        let twice = [&found[..], &found[1..]].concat();
        assert!(no_name_twice(&twice).expect_err("twice").contains("two"));
    }

    #[test]
    fn what_rust_cannot_call_is_an_error_with_its_line() {
        for (text, part) in [
            (
                "\n\nKERNEL int f(u64 i, float *y) {}",
                "k.cu:3: a kernel is declared as",
            ),
            ("KERNEL void f(float *y) {}", "`i` is the element"),
            ("KERNEL void f(u64 i, const float *x) {}", "writes nothing"),
            ("KERNEL void f(u64 i, half *y) {}", "`half *y`: the types"),
            ("KERNEL void f(u64 i, float **y) {}", "is no parameter"),
            (
                "KERNEL void f(u64 i, Whole<float> *y) {}",
                "is no parameter",
            ),
            (
                "KERNEL void f(u64 i, Whole<long> y) {}",
                "`Whole<long> y`: the types",
            ),
            (
                "KERNEL void f(u64 i, float &y) {}",
                "the types of a kernel's parameters",
            ),
            (
                "KERNEL void f(u64 i, float final, float *y) {}",
                "`float final`: the types",
            ),
            (
                "KERNEL void f(u64 i, int typeof, float *y) {}",
                "`int typeof`: the types",
            ),
            (
                "KERNEL void f(u64 i, float *stream) {}",
                "the types of a kernel's parameters",
            ),
            ("int main() {}", "declares no kernel"),
        ] {
            let why = find("k.cu", text).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
