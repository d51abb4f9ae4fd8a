//! The secrets that are known everywhere, each with the shape its issuer gives it.
//! More particular kinds come first: where two lay claim to the same text, the first one names it. Only ASCII classes,
//! so that the automaton of all patterns together never leaves its fast path on text in other scripts.

/// What may stand right before a match. Only `Anything` leaves the pattern as it is; of the others the first group is
/// the secret, because what stands before belongs to the match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Its own beginning is so particular that no word has it.
    Anything,
    /// No letter and no digit: `_` and `-` glue names to it.
    Sign,
    /// No letter, digit, `_` or `-`: words joined by these have its beginning as well (`task-sk-circle`).
    Word,
}

/// Escapes that are spelled out, colours of a terminal and percent-encoded bytes end in a letter or a digit, but what
/// follows them begins anew.
const ESCAPE: &str = r"\\(?:[abefnrtv0]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[0-7]{3})|\[[0-9;]*[mK]|%(?:25)*[0-9A-Fa-f]{2}";

/// What must be true of a match beside its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing.
    Shape,
    /// It does not go on and is no placeholder.
    Token,
    /// As `Token`, and it looks as if drawn at random.
    Random,
    /// It is no placeholder.
    Value,
    /// Letters and digits together, and no placeholder.
    Mixed,
    /// A name that says secret, a sign, a value: see `assignment`.
    Assignment,
}

/// A kind of secret. The first group of the pattern is the secret, or the whole match.
#[derive(Debug, Clone, Copy)]
pub(super) struct BuiltIn {
    pub(super) kind: &'static str,
    pattern: &'static str,
    pub(super) before: Before,
    pub(super) check: Check,
}

impl BuiltIn {
    /// The pattern with what may stand before it.
    pub(super) fn whole(&self) -> String {
        let pattern = self.pattern;
        match self.before {
            Before::Anything => pattern.to_owned(),
            Before::Sign => format!(r"(?:\b|_|{ESCAPE}){pattern}"),
            Before::Word => format!(r"(?:\b|{ESCAPE}){pattern}"),
        }
    }
}

const fn kind(kind: &'static str, check: Check, pattern: &'static str) -> BuiltIn {
    BuiltIn { kind, pattern, before: Before::Anything, check }
}

const fn after_sign(kind: &'static str, check: Check, pattern: &'static str) -> BuiltIn {
    BuiltIn { kind, pattern, before: Before::Sign, check }
}

const fn word(kind: &'static str, check: Check, pattern: &'static str) -> BuiltIn {
    BuiltIn { kind, pattern, before: Before::Word, check }
}

/// Kind of values that a name gives away.
pub(super) const NAMED_SECRET: &str = "named-secret";

pub(super) const BUILT_IN: [BuiltIn; 40] = [
    // PEM and PGP blocks: in lines, with "\n" spelled out, percent-encoded, or cut off before their end.
    kind(
        "private-key",
        Check::Shape,
        r#"-----BEGIN(?: |%20|\+)(?:[A-Z0-9]+(?: |%20|\+)){0,4}PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])*(?:[A-Za-z-]+: [ -~]*(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])+)*(?:[A-Za-z0-9+/=]|\\+/|%(?:2[BFbf]|3[Dd])){16,}(?:(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])+(?:[A-Za-z0-9+/=]|\\+/|%(?:2[BFbf]|3[Dd])){16,})*(?:(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])*(?:[A-Za-z0-9+/=]|\\+/|%(?:2[BFbf]|3[Dd]))*(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])*(?:=[A-Za-z0-9+/]{4}(?:\s|\\+(?:[nrt]|u000[adAD])|%0[adAD])*)?-----END(?: |%20|\+)(?:[A-Z0-9]+(?: |%20|\+)){0,4}PRIVATE(?: |%20|\+)KEY(?:(?: |%20|\+)BLOCK)?-----)?"#,
    ),
    kind("age-key", Check::Token, r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    // Words with "-" have this beginning, too (`disk-ant-…`): inside of one it has to look random.
    kind("anthropic-key", Check::Random, r"sk-ant-[A-Za-z0-9_-]{20,220}"),
    word("anthropic-key", Check::Token, r"(sk-ant-[A-Za-z0-9_-]{20,220})"),
    kind("openrouter-key", Check::Token, r"sk-or-v1-[A-Za-z0-9]{32,128}"),
    kind(
        "openai-key",
        Check::Random,
        r"sk-(?:(?:proj|svcacct|admin)-|[A-Za-z0-9_-]{20,200}T3BlbkFJ)[A-Za-z0-9_-]{20,200}",
    ),
    // Also of the many services that took over the shape.
    word("openai-key", Check::Random, r"(sk-[A-Za-z0-9_-]{20,220})"),
    after_sign("google-key", Check::Token, r"(AIza[A-Za-z0-9_-]{35})"),
    after_sign("google-oauth", Check::Token, r"(ya29\.[A-Za-z0-9_-]{20,1024}|GOCSPX-[A-Za-z0-9_-]{28})"),
    kind("aws-key", Check::Token, r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    kind("github-token", Check::Token, r"gh[pousr]_[A-Za-z0-9]{36,255}"),
    kind("github-token", Check::Random, r"github_pat_[A-Za-z0-9_]{22,255}"),
    word("github-token", Check::Token, r"(github_pat_[A-Za-z0-9_]{22,255})"),
    after_sign(
        "gitlab-token",
        Check::Token,
        r"(gl(?:pat|ptt|dt|rt|rtr|cbt|ft|soat|imt|agent|oas|ffct)-[A-Za-z0-9_-]{20,300}(?:\.[A-Za-z0-9_-]{2,64})*)",
    ),
    kind(
        "slack-webhook",
        Check::Value,
        r"https:(?:\\*/){2}hooks\.slack\.com\\*/(?:services|workflows)\\*/((?:[A-Za-z0-9/_-]|\\+/){20,120})",
    ),
    // Its numbers give it away; what follows them need not look random.
    kind("slack-token", Check::Token, r"xox[abeoprs]-[0-9]{8,20}-[A-Za-z0-9-]{10,255}"),
    kind(
        "slack-token",
        Check::Random,
        r"xox[abeoprs](?:\.xox[a-z])?-[A-Za-z0-9-]{10,255}|xapp-[0-9]-[A-Za-z0-9-]{20,255}",
    ),
    // `task_test_…` is a word like any other.
    kind("stripe-key", Check::Random, r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/=]{24,128}"),
    word("stripe-key", Check::Token, r"((?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/=]{24,128})"),
    kind("huggingface-token", Check::Token, r"(?:hf|api_org)_[A-Za-z0-9]{30,64}"),
    kind("npm-token", Check::Token, r"npm_[A-Za-z0-9]{36}"),
    kind("pypi-token", Check::Token, r"pypi-AgE[A-Za-z0-9_-]{50,1024}"),
    kind("groq-key", Check::Token, r"gsk_[A-Za-z0-9]{40,128}"),
    after_sign("xai-key", Check::Token, r"(xai-[A-Za-z0-9]{60,128})"),
    kind("perplexity-key", Check::Token, r"pplx-[A-Za-z0-9]{40,128}"),
    after_sign("replicate-token", Check::Token, r"(r8_[A-Za-z0-9]{37,64})"),
    after_sign("sendgrid-key", Check::Token, r"(SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64})"),
    kind("digitalocean-token", Check::Token, r"do[opr]_v1_[a-f0-9]{64}"),
    after_sign("databricks-token", Check::Token, r"(dapi[a-f0-9]{32})"),
    kind("docker-token", Check::Token, r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,128}"),
    kind("shopify-token", Check::Token, r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    // A variable may be called so, and have attributes.
    after_sign("vault-token", Check::Random, r"(hv[sbr]\.[A-Za-z0-9_-]{24,255})"),
    word("vault-token", Check::Token, r"(hv[sbr]\.[A-Za-z0-9_-]{24,255})"),
    // In addresses "bot" is glued to it.
    after_sign("telegram-token", Check::Token, r"(?:bot)?([0-9]{8,10}:AA[A-Za-z0-9_-]{33})"),
    kind("jwt", Check::Token, r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    // A name and a password before a host: web addresses and connection strings alike.
    kind(
        "url-password",
        Check::Value,
        r#":(?:\\*/){2}[A-Za-z0-9._~%!$&*+,;=-]{0,128}:([A-Za-z0-9._~%!$&*+,;=?#^|-]{1,256})@[A-Za-z0-9\[]"#,
    ),
    after_sign(
        "authorization",
        Check::Value,
        r#"(?i:authorization(?:\\*["']|\\+u0022|%22)?(?:\s|%20|\+)*(?:[:=]|%3[ad])(?:\s|%20|\+)*(?:\\*["']|\\+u0022|%22)?(?:bearer|basic|token|digest)(?:\s+|(?:%20|\+)+))([A-Za-z0-9._~+/=-]{8,4096})"#,
    ),
    after_sign("authorization", Check::Random, r"(?i:bearer(?:\s+|(?:%20|\+)+))([A-Za-z0-9._~+/=-]{16,4096})"),
    // Without "\": in a text that is spelled out the line ends there.
    kind(
        "command-password",
        Check::Mixed,
        r#"(?:(?:\s|\\[nrt])--?(?:[a-z0-9]+-){0,4}(?i:password|passwd|passphrase|secret|token|api-?key|access-?key)(?:=|[ \t]+)|(?:\s|\\[nrt])(?:-u|--user)[ =]["']?[A-Za-z0-9._@-]+:)["']?([!#-&(-\[\]-~]{6,256})"#,
    ),
    // The value is read by hand: quotes decide where it ends, and the name how it must look.
    kind(
        NAMED_SECRET,
        Check::Assignment,
        r#"(?i:secret|token|pass|pwd|key|credential|auth|cookie)[A-Za-z0-9_.-]*\\*["']?\s{0,8}(?:=>|:=|[:=])"#,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_take_in_what_stands_before_name_the_secret_with_a_group() {
        for built_in in BUILT_IN.iter().filter(|built_in| built_in.before != Before::Anything) {
            let whole = regex::Regex::new(&built_in.whole()).expect("valid");
            assert_eq!(whole.captures_len(), 2, "{}: {whole}", built_in.kind);
        }
    }
}
