//! The function an attribute stands on: read, and refused with a reason where it cannot be used.

use proc_macro2::{Group, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Error, Ident, Safety, Signature, Token, Visibility};

/// A function, as far as the attributes need to understand it.
///
/// The body stays a group of tokens: the compiler reads it later, and reports what is wrong in it
/// better than we could.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if !starts_function(input) {
            return Err(input.error("this attribute goes on an `async fn`"));
        }
        let signature = input.parse()?;
        let body = input.parse()?;
        Ok(Self {
            attributes,
            visibility,
            signature,
            body,
        })
    }
}

impl Function {
    /// Every reason why `attribute` (its name, for the texts) cannot stand on this function.
    pub(crate) fn check(&self, attribute: &str, errors: &mut Vec<Error>) {
        let Signature {
            constness,
            asyncness,
            safety,
            abi,
            fn_token,
            generics,
            inputs,
            variadic,
            ..
        } = &self.signature;
        let mut refuse = |tokens: &dyn ToTokens, text: String| {
            errors.push(Error::new_spanned(tokens.to_token_stream(), text));
        };

        if asyncness.is_none() {
            refuse(
                fn_token,
                format!(
                    "`{attribute}` needs an `async fn`: write `async` before `fn`, or remove the attribute"
                ),
            );
        }
        if let Some(token) = constness {
            refuse(
                token,
                format!("a function under `{attribute}` cannot be `const`"),
            );
        }
        if let Safety::Unsafe(token) = safety {
            refuse(
                token,
                format!("a function under `{attribute}` cannot be `unsafe`"),
            );
        }
        if let Some(token) = abi {
            refuse(
                token,
                format!("a function under `{attribute}` cannot be `extern`"),
            );
        }
        if !generics.params.is_empty() {
            refuse(
                generics,
                format!(
                    "a function under `{attribute}` cannot have generics: nobody could choose them"
                ),
            );
        }
        if let Some(clause) = &generics.where_clause {
            refuse(
                clause,
                format!("a function under `{attribute}` cannot have a `where` clause"),
            );
        }
        if !inputs.is_empty() || variadic.is_some() {
            refuse(
                &quote::quote!(#inputs #variadic),
                format!(
                    "a function under `{attribute}` takes no arguments: nobody could pass them"
                ),
            );
        }
    }

    /// The function without its body, for when something is wrong with it: what else names the
    /// function still finds it, so the only errors the user sees are ours.
    pub(crate) fn stub(&self) -> TokenStream {
        let Self { visibility, .. } = self;
        let name = &self.signature.ident;
        quote::quote!(#visibility fn #name() {})
    }
}

/// Whether a function, of whatever kind, begins here.
fn starts_function(input: ParseStream) -> bool {
    // A keyword would do as the first word of other items, too (`const N: u8`, `unsafe impl`,
    // `extern crate`), so look for the `fn` behind all that may stand before it.
    let ahead = input.fork();
    // Ends with the input: each round takes one token.
    loop {
        if ahead.peek(Token![fn]) {
            return true;
        }
        let before_fn = ahead.peek(Token![const])
            || ahead.peek(Token![async])
            || ahead.peek(Token![unsafe])
            || ahead.peek(Token![extern]);
        if before_fn {
            if ahead.call(Ident::parse_any).is_err() {
                return false;
            }
        } else if ahead.peek(syn::LitStr) {
            // The name behind `extern`.
            if ahead.parse::<syn::LitStr>().is_err() {
                return false;
            }
        } else {
            return false;
        }
    }
}
