//! The keys an attribute takes, read and checked: `cores = 2, ring = "defer"`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitInt, LitStr, Path, Token, parse_quote};

/// The keys, in the order in which an error lists them.
const KEYS: [&str; 5] = ["cores", "ring", "entries", "name", "crate"];

/// The values of `ring`, each with the variant of `RingMode` that it stands for.
const RINGS: [(&str, &str); 3] = [("auto", "Auto"), ("sqpoll", "SqPoll"), ("defer", "Defer")];

/// The shards asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Cores {
    All,
    Count(usize),
    List(Vec<usize>),
}

/// What an attribute asks for; `None` leaves a setting to the builder.
pub(crate) struct Options {
    pub(crate) cores: Cores,
    /// A variant of `RingMode`.
    pub(crate) ring: Option<Ident>,
    pub(crate) entries: Option<u32>,
    pub(crate) name: Option<LitStr>,
    /// The path of the facade.
    pub(crate) facade: Path,
}

impl Options {
    /// Reads the keys. A key that is wrong keeps its default and adds to `errors`.
    pub(crate) fn parse(tokens: TokenStream, cores: Cores, errors: &mut Vec<Error>) -> Self {
        let mut options = Self {
            cores,
            ring: None,
            entries: None,
            name: None,
            facade: parse_quote!(::roundel),
        };
        let settings = match Punctuated::<Setting, Token![,]>::parse_terminated.parse2(tokens) {
            Ok(settings) => settings,
            Err(error) => {
                errors.push(error);
                return options;
            }
        };
        let mut seen: Vec<String> = Vec::new();
        for setting in &settings {
            let key = setting.key.to_string();
            if seen.contains(&key) {
                errors.push(Error::new(
                    setting.key.span(),
                    format!("the key `{key}` is given twice"),
                ));
                continue;
            }
            if let Err(error) = options.set(&key, setting) {
                errors.push(error);
            }
            seen.push(key);
        }
        options
    }

    /// The call of `Builder` that makes what was asked for.
    pub(crate) fn builder(&self) -> TokenStream {
        let facade = &self.facade;
        let cores = match &self.cores {
            Cores::All => quote!(#facade::Cores::All),
            Cores::Count(count) => quote!(#facade::Cores::Count(#count)),
            Cores::List(cpus) => quote!(#facade::Cores::List(::std::vec![#(#cpus),*])),
        };
        let ring = self
            .ring
            .as_ref()
            .map(|mode| quote!(.ring(#facade::RingMode::#mode)));
        let entries = self.entries.map(|entries| quote!(.entries(#entries)));
        let name = self.name.as_ref().map(|name| quote!(.name(#name)));
        quote!(#facade::Builder::new().cores(#cores) #ring #entries #name)
    }

    fn set(&mut self, key: &str, setting: &Setting) -> syn::Result<()> {
        let value = &setting.value;
        match key {
            "cores" => self.cores = cores(value)?,
            "ring" => self.ring = Some(ring(value)?),
            "entries" => self.entries = Some(entries(value)?),
            "name" => self.name = Some(name(value)?),
            "crate" => self.facade = facade(value)?,
            _ => {
                return Err(Error::new(
                    setting.key.span(),
                    format!("unknown key `{key}`; the keys are {}", listed(&KEYS)),
                ));
            }
        }
        Ok(())
    }
}

/// `key = value`.
struct Setting {
    key: Ident,
    value: Expr,
}

impl syn::parse::Parse for Setting {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        // Any word, as `crate` is a keyword.
        let key = input.call(Ident::parse_any)?;
        if !input.peek(Token![=]) {
            return Err(Error::new(
                key.span(),
                format!("expected `key = value`; the keys are {}", listed(&KEYS)),
            ));
        }
        input.parse::<Token![=]>()?;
        let value = input.parse()?;
        Ok(Self { key, value })
    }
}

fn cores(value: &Expr) -> syn::Result<Cores> {
    match value {
        Expr::Array(array) => {
            let mut cpus = Vec::new();
            for element in &array.elems {
                let cpu = integer::<usize>(element, "a CPU is a number, such as `0`")?;
                if cpus.contains(&cpu) {
                    return Err(wrong(element, &format!("CPU {cpu} is listed twice")));
                }
                cpus.push(cpu);
            }
            if cpus.is_empty() {
                return Err(wrong(value, "the list of CPUs is empty"));
            }
            Ok(Cores::List(cpus))
        }
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) if text.value() == "all" => Ok(Cores::All),
        _ => {
            let expected =
                "`cores` is `\"all\"`, a number of cores, or a list of CPUs such as `[0, 1]`";
            match integer(value, expected)? {
                0 => Err(wrong(value, "a runtime has at least one core")),
                count => Ok(Cores::Count(count)),
            }
        }
    }
}

fn ring(value: &Expr) -> syn::Result<Ident> {
    let values = RINGS.map(|(value, _)| value);
    let expected = format!("`ring` is one of the strings {}", listed(&values));
    let text = string(value, &expected)?;
    let asked = text.value();
    match RINGS.iter().find(|(value, _)| *value == asked) {
        Some((_, variant)) => Ok(Ident::new(variant, Span::call_site())),
        None => Err(wrong(value, &expected)),
    }
}

fn entries(value: &Expr) -> syn::Result<u32> {
    match integer(
        value,
        "`entries` is a number of ring entries, such as `256`",
    )? {
        0 => Err(wrong(value, "a ring has at least one entry")),
        entries => Ok(entries),
    }
}

fn name(value: &Expr) -> syn::Result<LitStr> {
    let name = string(value, "`name` is a string")?;
    if name.value().contains('\0') {
        return Err(wrong(value, "a thread's name cannot hold a NUL"));
    }
    Ok(name)
}

fn facade(value: &Expr) -> syn::Result<Path> {
    let expected = "`crate` is the path of roundel as a string, such as `\"::roundel\"`";
    let text = string(value, expected)?;
    text.parse_with(Path::parse_mod_style)
        .map_err(|_| wrong(value, expected))
}

fn string(value: &Expr, expected: &str) -> syn::Result<LitStr> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(text.clone()),
        _ => Err(wrong(value, expected)),
    }
}

fn integer<N>(value: &Expr, expected: &str) -> syn::Result<N>
where
    N: std::str::FromStr,
    N::Err: std::fmt::Display,
{
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) if number.suffix().is_empty() => parse_integer(number),
        _ => Err(wrong(value, expected)),
    }
}

fn parse_integer<N>(number: &LitInt) -> syn::Result<N>
where
    N: std::str::FromStr,
    N::Err: std::fmt::Display,
{
    number.base10_parse()
}

fn wrong(tokens: impl ToTokens, text: &str) -> Error {
    Error::new_spanned(tokens, text)
}

/// `a`, `b` and `c`, in quotes.
fn listed(words: &[&str]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            text += if index + 1 == words.len() {
                " and "
            } else {
                ", "
            };
        }
        text += &format!("`{word}`");
    }
    text
}
