//! From the keys and the function to the function that replaces it.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Error;

use crate::function::Function;
use crate::options::{Cores, Options};

/// Which attribute is expanded.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Attribute {
    Main,
    Test,
}

impl Attribute {
    /// The attribute as it is written, for error texts.
    fn text(self) -> &'static str {
        match self {
            Self::Main => "#[roundel::main]",
            Self::Test => "#[roundel::test]",
        }
    }

    /// The shards without the key `cores`: a program is given the machine; a test one shard, as
    /// the harness already runs as many tests at a time as there are CPUs.
    fn cores(self) -> Cores {
        match self {
            Self::Main => Cores::All,
            Self::Test => Cores::Count(1),
        }
    }
}

/// Expands `#[roundel::main(keys)] item` or `#[roundel::test(keys)] item`.
///
/// Whatever is wrong is reported at once. Wrong keys do not stop the expansion (their defaults
/// stand in), a wrong function leaves a stub, so no error follows from ours.
pub(crate) fn expand(attribute: Attribute, keys: TokenStream, item: TokenStream) -> TokenStream {
    let mut errors = Vec::new();
    let options = Options::parse(keys, attribute.cores(), &mut errors);
    let function = match syn::parse2::<Function>(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            errors.push(error);
            return report(errors, item);
        }
    };

    let function_errors_begin = errors.len();
    function.check(attribute.text(), &mut errors);
    if attribute == Attribute::Test {
        refuse_second_test(&function, &mut errors);
    }
    let replacement = if errors.len() > function_errors_begin {
        function.stub()
    } else {
        replace(attribute, &options, &function)
    };
    report(errors, replacement)
}

fn replace(attribute: Attribute, options: &Options, function: &Function) -> TokenStream {
    let Function {
        attributes,
        visibility,
        signature,
        body,
    } = function;
    let name = &signature.ident;
    let output = &signature.output;
    let facade = &options.facade;
    let builder = options.builder();
    let test = match attribute {
        Attribute::Main => None,
        // By its full path, as `test` may well be the user's `use roundel::test`.
        Attribute::Test => Some(quote!(#[::core::prelude::v1::test])),
    };
    quote! {
        #test
        #(#attributes)*
        #visibility fn #name() #output {
            // Under the name it was written with: a body that names itself means this one, and
            // no name that the user could have meant otherwise is taken.
            async fn #name() #output #body

            let runtime = #facade::__private::start(#builder);
            runtime.block_on(#name())
        }
    }
}

/// A `#[test]` beside ours would run the test twice.
fn refuse_second_test(function: &Function, errors: &mut Vec<Error>) {
    for attribute in &function.attributes {
        if attribute.path().is_ident("test") {
            errors.push(Error::new_spanned(
                attribute,
                "`#[roundel::test]` is the test attribute already: remove this one",
            ));
        }
    }
}

fn report(errors: Vec<Error>, replacement: TokenStream) -> TokenStream {
    let errors = errors.iter().map(Error::to_compile_error);
    quote!(#(#errors)* #replacement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    fn tokens(source: &str) -> TokenStream {
        TokenStream::from_str(source).expect("the sample is made of tokens")
    }

    /// Compares as text of tokens, so that spacing does not matter.
    fn assert_expands(attribute: Attribute, keys: &str, item: &str, expected: &str) {
        let expanded = expand(attribute, tokens(keys), tokens(item)).to_string();
        assert_eq!(expanded, tokens(expected).to_string());
    }

    /// The texts of the errors in an expansion, in their order.
    fn errors(attribute: Attribute, keys: &str, item: &str) -> Vec<String> {
        let expanded = expand(attribute, tokens(keys), tokens(item));
        let file: syn::File = syn::parse2(expanded).expect("an expansion is made of items");
        let mut texts = Vec::new();
        for item in file.items {
            if let syn::Item::Macro(call) = item {
                assert!(call.mac.path.segments.last().unwrap().ident == "compile_error");
                texts.push(call.mac.parse_body::<syn::LitStr>().unwrap().value());
            }
        }
        texts
    }

    fn key_errors(keys: &str) -> Vec<String> {
        errors(Attribute::Main, keys, "async fn main() {}")
    }

    fn function_errors(item: &str) -> Vec<String> {
        errors(Attribute::Main, "", item)
    }

    // Without keys `main` runs on all cores, and the body stands in the expansion exactly once.
    #[test]
    fn main_without_keys() {
        assert_expands(
            Attribute::Main,
            "",
            "async fn main() { serve().await; }",
            "fn main() {
                async fn main() { serve().await; }
                let runtime = ::roundel::__private::start(
                    ::roundel::Builder::new().cores(::roundel::Cores::All)
                );
                runtime.block_on(main())
            }",
        );
    }

    // Each key reaches the builder, whatever the order in which they were written.
    #[test]
    fn main_with_every_key() {
        assert_expands(
            Attribute::Main,
            "name = \"echo\", entries = 512, crate = \"kit::rt\", ring = \"sqpoll\", cores = [0, 2],",
            "pub async fn main() -> std::io::Result<()> { Ok(()) }",
            "pub fn main() -> std::io::Result<()> {
                async fn main() -> std::io::Result<()> { Ok(()) }
                let runtime = kit::rt::__private::start(
                    kit::rt::Builder::new()
                        .cores(kit::rt::Cores::List(::std::vec![0usize, 2usize]))
                        .ring(kit::rt::RingMode::SqPoll)
                        .entries(512u32)
                        .name(\"echo\")
                );
                runtime.block_on(main())
            }",
        );
    }

    // A test has one core, is a standard test, and keeps every other attribute in its place.
    #[test]
    fn test_keeps_attributes() {
        assert_expands(
            Attribute::Test,
            "",
            "/// Says why.
             #[should_panic(expected = \"on purpose\")]
             async fn fails() { #![allow(unused)] panic!(\"on purpose\") }",
            "#[::core::prelude::v1::test]
             /// Says why.
             #[should_panic(expected = \"on purpose\")]
             fn fails() {
                async fn fails() { #![allow(unused)] panic!(\"on purpose\") }
                let runtime = ::roundel::__private::start(
                    ::roundel::Builder::new().cores(::roundel::Cores::Count(1usize))
                );
                runtime.block_on(fails())
             }",
        );
    }

    // Every value of `cores` and of `ring` reaches the builder as its variant.
    #[test]
    fn values_of_cores_and_ring() {
        for (value, variant) in [
            ("\"all\"", "Cores::All"),
            ("3", "Cores::Count(3usize)"),
            ("0x10", "Cores::Count(16usize)"),
            ("[7]", "Cores::List(::std::vec![7usize])"),
        ] {
            let expanded = expand(
                Attribute::Test,
                tokens(&format!("cores = {value}")),
                tokens("async fn works() {}"),
            );
            let wanted = tokens(&format!(".cores(::roundel::{variant})")).to_string();
            assert!(expanded.to_string().contains(&wanted), "{expanded}");
        }
        for (value, variant) in [("auto", "Auto"), ("sqpoll", "SqPoll"), ("defer", "Defer")] {
            let expanded = expand(
                Attribute::Main,
                tokens(&format!("ring = \"{value}\"")),
                tokens("async fn main() {}"),
            );
            let wanted = tokens(&format!(".ring(::roundel::RingMode::{variant})")).to_string();
            assert!(expanded.to_string().contains(&wanted), "{expanded}");
        }
    }

    // An unknown key names itself and all that are known.
    #[test]
    fn unknown_key() {
        assert_eq!(
            key_errors("threads = 4"),
            ["unknown key `threads`; the keys are `cores`, `ring`, `entries`, `name` and `crate`"]
        );
    }

    // A key given twice is an error even if both values agree.
    #[test]
    fn key_given_twice() {
        assert_eq!(
            key_errors("cores = 1, ring = \"auto\", cores = 1"),
            ["the key `cores` is given twice"]
        );
    }

    // A key without a value, or a value without a key, says what was expected.
    #[test]
    fn key_without_value() {
        let expected =
            "expected `key = value`; the keys are `cores`, `ring`, `entries`, `name` and `crate`";
        assert_eq!(key_errors("cores"), [expected]);
        assert_eq!(key_errors("cores(2)"), [expected]);
        assert_eq!(key_errors("2").len(), 1);
        assert_eq!(key_errors("cores = 1 ring = \"auto\"").len(), 1);
    }

    // Each wrong value says what the key takes.
    #[test]
    fn wrong_values() {
        let cores = "`cores` is `\"all\"`, a number of cores, or a list of CPUs such as `[0, 1]`";
        let ring = "`ring` is one of the strings `auto`, `sqpoll` and `defer`";
        let entries = "`entries` is a number of ring entries, such as `256`";
        let path = "`crate` is the path of roundel as a string, such as `\"::roundel\"`";
        for (keys, expected) in [
            ("cores = \"every\"", cores),
            ("cores = all", cores),
            ("cores = -1", cores),
            ("cores = 2usize", cores),
            ("cores = 1.5", cores),
            ("cores = 0", "a runtime has at least one core"),
            ("cores = []", "the list of CPUs is empty"),
            ("cores = [1, 1]", "CPU 1 is listed twice"),
            ("cores = [\"0\"]", "a CPU is a number, such as `0`"),
            ("ring = \"epoll\"", ring),
            ("ring = defer", ring),
            ("entries = \"64\"", entries),
            ("entries = 0", "a ring has at least one entry"),
            ("name = 7", "`name` is a string"),
            ("name = \"a\\0b\"", "a thread's name cannot hold a NUL"),
            ("crate = roundel", path),
            ("crate = \"\"", path),
            ("crate = \"not a path\"", path),
        ] {
            assert_eq!(key_errors(keys), [expected], "{keys}");
        }
        // Beyond the type: the number's own parser says so.
        assert_eq!(key_errors("entries = 4294967296").len(), 1);
    }

    // All that is wrong is reported at once, and the function still exists.
    #[test]
    fn errors_come_together() {
        let keys = "speed = 9, entries = 0";
        let item = "async fn main() { serve().await }";
        assert_eq!(errors(Attribute::Main, keys, item).len(), 2);
        let expanded = expand(Attribute::Main, tokens(keys), tokens(item)).to_string();
        assert!(expanded.contains("fn main ()"), "{expanded}");
    }

    // A function that cannot be run is refused, with the reason, and leaves a stub of its name.
    #[test]
    fn wrong_functions() {
        for (item, expected) in [
            (
                "fn main() {}",
                "`#[roundel::main]` needs an `async fn`: write `async` before `fn`, or remove the attribute",
            ),
            (
                "async fn main(arguments: Vec<String>) {}",
                "a function under `#[roundel::main]` takes no arguments: nobody could pass them",
            ),
            (
                "async fn main<T>() {}",
                "a function under `#[roundel::main]` cannot have generics: nobody could choose them",
            ),
            (
                "async fn main() where u8: Copy {}",
                "a function under `#[roundel::main]` cannot have a `where` clause",
            ),
            (
                "const async fn main() {}",
                "a function under `#[roundel::main]` cannot be `const`",
            ),
            (
                "async unsafe fn main() {}",
                "a function under `#[roundel::main]` cannot be `unsafe`",
            ),
            (
                "async extern \"C\" fn main() {}",
                "a function under `#[roundel::main]` cannot be `extern`",
            ),
        ] {
            assert_eq!(function_errors(item), [expected], "{item}");
            let expanded = expand(Attribute::Main, tokens(""), tokens(item)).to_string();
            assert!(expanded.ends_with("fn main () { }"), "{expanded}");
        }
    }

    // An item that is no function is named as such, and stays.
    #[test]
    fn other_items() {
        for item in [
            "struct Main;",
            "mod main {}",
            "const N: u8 = 1;",
            "unsafe impl Send for Main {}",
        ] {
            assert_eq!(
                function_errors(item),
                ["this attribute goes on an `async fn`"],
                "{item}"
            );
            let expanded = expand(Attribute::Main, tokens(""), tokens(item)).to_string();
            assert!(expanded.ends_with(&tokens(item).to_string()), "{expanded}");
        }
    }

    // Two test attributes would run a test twice.
    #[test]
    fn second_test_attribute() {
        assert_eq!(
            errors(Attribute::Test, "", "#[test] async fn works() {}"),
            ["`#[roundel::test]` is the test attribute already: remove this one"]
        );
    }
}
