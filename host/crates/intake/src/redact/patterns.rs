//! The secrets that are known everywhere, each with the shape its issuer gives it.
//! More particular kinds come first: where two lay claim to the same text, the first one names it. Only ASCII classes,
//! so that the automaton of all patterns together never leaves its fast path on text in other scripts.

/// What must be true of a match beside its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Nothing.
    Shape,
    /// It is no part of a longer word and no placeholder.
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
    pub(super) pattern: &'static str,
    pub(super) check: Check,
}

const fn kind(kind: &'static str, check: Check, pattern: &'static str) -> BuiltIn {
    BuiltIn { kind, pattern, check }
}

/// Kind of values that a name gives away.
pub(super) const NAMED_SECRET: &str = "named-secret";

pub(super) const BUILT_IN: [BuiltIn; 34] = [
    // PEM and PGP blocks, in lines, with "\n" spelled out, or cut off before their end.
    kind(
        "private-key",
        Check::Shape,
        r#"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\+[nr])*(?:[A-Za-z-]+: [ -~]*(?:\s|\\+[nr])+)*[A-Za-z0-9+/=]{16,}(?:(?:\s|\\+[nr])+[A-Za-z0-9+/=]{16,})*(?:(?:\s|\\+[nr])*[A-Za-z0-9+/=]*(?:\s|\\+[nr])*(?:=[A-Za-z0-9+/]{4}(?:\s|\\+[nr])*)?-----END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----)?"#,
    ),
    kind("age-key", Check::Token, r"\bAGE-SECRET-KEY-1[A-Z0-9]{58}"),
    kind("anthropic-key", Check::Token, r"\bsk-ant-[A-Za-z0-9_-]{20,220}"),
    kind("openrouter-key", Check::Token, r"\bsk-or-v1-[A-Za-z0-9]{32,128}"),
    // Also of the many services that took over the shape.
    kind("openai-key", Check::Random, r"\bsk-[A-Za-z0-9_-]{20,220}"),
    kind("google-key", Check::Token, r"\bAIza[A-Za-z0-9_-]{35}"),
    kind("google-oauth", Check::Token, r"\b(?:ya29\.[A-Za-z0-9_-]{20,1024}|GOCSPX-[A-Za-z0-9_-]{28})"),
    kind("aws-key", Check::Token, r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    kind("github-token", Check::Token, r"\bgh[pousr]_[A-Za-z0-9]{36,255}|\bgithub_pat_[A-Za-z0-9_]{22,255}"),
    kind(
        "gitlab-token",
        Check::Token,
        r"\bgl(?:pat|ptt|dt|rt|rtr|cbt|ft|soat|imt|agent|oas|ffct)-[A-Za-z0-9_-]{20,300}(?:\.[A-Za-z0-9_-]{2,64})*",
    ),
    kind("slack-webhook", Check::Value, r"\bhttps://hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/_-]{20,120})"),
    // Its numbers give it away; what follows them need not look random.
    kind("slack-token", Check::Token, r"\bxox[abeoprs]-[0-9]{8,20}-[A-Za-z0-9-]{10,255}"),
    kind(
        "slack-token",
        Check::Random,
        r"\bxox[abeoprs](?:\.xox[a-z])?-[A-Za-z0-9-]{10,255}|\bxapp-[0-9]-[A-Za-z0-9-]{20,255}",
    ),
    kind("stripe-key", Check::Token, r"\b(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}|\bwhsec_[A-Za-z0-9+/=]{24,128}"),
    kind("huggingface-token", Check::Token, r"\b(?:hf|api_org)_[A-Za-z0-9]{30,64}"),
    kind("npm-token", Check::Token, r"\bnpm_[A-Za-z0-9]{36}"),
    kind("pypi-token", Check::Token, r"\bpypi-AgE[A-Za-z0-9_-]{50,1024}"),
    kind("groq-key", Check::Token, r"\bgsk_[A-Za-z0-9]{40,128}"),
    kind("xai-key", Check::Token, r"\bxai-[A-Za-z0-9]{60,128}"),
    kind("perplexity-key", Check::Token, r"\bpplx-[A-Za-z0-9]{40,128}"),
    kind("replicate-token", Check::Token, r"\br8_[A-Za-z0-9]{37,64}"),
    kind("sendgrid-key", Check::Token, r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    kind("digitalocean-token", Check::Token, r"\bdo[opr]_v1_[a-f0-9]{64}"),
    kind("databricks-token", Check::Token, r"\bdapi[a-f0-9]{32}"),
    kind("docker-token", Check::Token, r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,128}"),
    kind("shopify-token", Check::Token, r"\bshp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    kind("vault-token", Check::Token, r"\bhv[sbr]\.[A-Za-z0-9_-]{24,255}"),
    kind("telegram-token", Check::Token, r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    kind("jwt", Check::Token, r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    // A name and a password before a host: web addresses and connection strings alike.
    kind(
        "url-password",
        Check::Value,
        r#"://[A-Za-z0-9._~%!$&*+,;=-]{0,128}:([A-Za-z0-9._~%!$&*+,;=?#^|-]{1,256})@[A-Za-z0-9\[]"#,
    ),
    kind(
        "authorization",
        Check::Value,
        r#"(?i:\bauthorization\\*["']?\s*[:=]\s*\\*["']?(?:bearer|basic|token|digest)\s+)([A-Za-z0-9._~+/=-]{8,4096})"#,
    ),
    kind("authorization", Check::Random, r"(?i:\bbearer\s+)([A-Za-z0-9._~+/=-]{16,4096})"),
    kind(
        "command-password",
        Check::Mixed,
        r#"(?:\s--?(?:[a-z0-9]+-){0,4}(?i:password|passwd|passphrase|secret|token|api-?key|access-?key)(?:=|[ \t]+)|\s(?:-u|--user)[ =]["']?[A-Za-z0-9._@-]+:)["']?([!#-&(-~]{6,256})"#,
    ),
    // The value is read by hand: quotes decide where it ends, and the name how it must look.
    kind(
        NAMED_SECRET,
        Check::Assignment,
        r#"(?i:secret|token|pass|pwd|key|credential|auth|cookie)[A-Za-z0-9_.-]*\\*["']?\s{0,8}(?:=>|:=|[:=])"#,
    ),
];
