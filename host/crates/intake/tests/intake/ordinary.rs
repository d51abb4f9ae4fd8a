//! What people and agents write all day stays as it is: prose, code, documentation, identifiers, pictures, placeholders.

use proptest::prelude::*;
use serde_json::json;

use super::secrets::{drawn, redactor};

const PROSE: [&str; 15] = [
    "The secret of a good password is length. Token: a small piece of text. Key points: read, write, repeat.",
    "Bearer of bad news: the authorization-required-by-policy flag is on. Basic authentication is described below.",
    "Password: required. Secret: none. Token: see the documentation. Author: Jane Doe. Keyboard: US.",
    "Please set your password in the settings; the passphrase is never stored. API key: ask your administrator.",
    "Pass: 12, fail: 3. Passes = 4. compass = north. bypass=true, passwordless login.",
    "Please mail me@example.org or visit https://example.org:8080/path@v2 and ssh://git@github.com:22/org/repo.git",
    "Der Schlüssel: liegt unter der Matte. Das Passwort: fragen Sie den Administrator.",
    "秘密: パスワードは教えられません。 token: トークン",
    "The risk-assessment-for-the-third-quarter document and the task-management-and-planning-board are ready.",
    "max_tokens: 4096, token_count=12345, tokens = 17, total_tokens: 123456789012",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b (HEAD -> main)\nAuthor: A U Thor <author@example.org>",
    "id 550e8400-e29b-41d4-a716-446655440000, trace 4bf92f3577b34da6a3ce929d0e0e4736, sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "call_9f86d081884c7d65, chatcmpl-9f86d081884c7d659a2f, msg_01XFDUDYJgAACzvnptvVoYEL, toolu_01A09q90qw90lq917835lq9",
    "a disk-ant-colony-optimization-study, task-ant-design-component-library-for-react, the desk-proj-management-and-planning",
    "docker run -u 1000:1000 -e TOKEN -e PASSWORD image; curl --user $USER:$PASS http://x; mysql --password db",
];

const CODE: [&str; 30] = [
    "let token = tokens[i + 1]; let key = map.keys().next(); secret = config.secret2.clone();",
    "password = os.environ[\"DB_PASSWORD\"]; api_key = os.getenv('OPENAI_API_KEY')",
    "const apiKey = process.env.API_KEY; const token: string = await getToken(user1);",
    "def login(user: str, password: str = None, token: Optional[str] = None) -> Token:",
    "password=settings.DB2_PASSWORD, secret=vault.read('kv/app1'), token=response.json()['token']",
    "<input type=\"password\" name=\"password\" placeholder=\"Password\" autocomplete=\"current-password\">",
    "{\"password\": \"required|min:8\", \"token\": \"auth.login.token\", \"secret\": \"string\"}",
    "if header.starts_with(\"-----BEGIN PRIVATE KEY-----\") { return Err(Error::PrivateKey); } let rest = 1;",
    "cache_key = \"user_profile_2024\"; sort_key=created_at_2; primary_key: id1; public_key = ssh_rsa_2048",
    "next_page_token = \"CAoQAA9f86d081884c7d65\"; page_token=9f86d081884c7d659a2f",
    ".sk-loading-spinner-container { color: red } .task-sk-circle-fade-dot-2 {}",
    "key: \"a1b2c3d4e5f6\", keyCode: 13, onKeyDown={handleKey1234567890}",
    "OPENAI_API_KEY=${OPENAI_API_KEY}\nTOKEN=$TOKEN\nSECRET=<your-secret>\nPASSWORD={{ db_password }}\nKEY=%API_KEY%",
    "GITHUB_TOKEN: ${{ secrets.GITHUB_TOKEN }}\npassword: !vault |\n  api_key: op://vault/item/field",
    "export ANTHROPIC_API_KEY=YOUR_API_KEY\nexport HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nAPI_KEY=changeme",
    "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\nghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-xxxxxxxxxxxxxxxxxxxxxxxx",
    "postgres://user:password@localhost/db mysql://root:${PASS}@db/app https://user:<password>@host redis://:***@h",
    "Authorization: Bearer $TOKEN\nAuthorization: Bearer YOUR_TOKEN_HERE\nauthorization: `Bearer ${token}`",
    "GPG_KEY=E3FF2839C048B25C084DEBE9B26995E310250568\nSSH_AUTH_SOCK=/tmp/agent.1\nKEY_PATH=/etc/key2.pem\nTOKEN_URL=https://a1b2.example.org",
    "self.secret_key_length = 32; token_type=\"Bearer\"; passwordPolicy: \"min12chars1digit\"; secret_name=\"prod-db-2\"",
    "import { Authorization1 } from './auth/authorization2'; import tokenizer2 from \"tokenizer-v2-legacy\"",
    "from x_sk_test_internationalization import task_test_migrationcontroller; disk_live_migrationcontrollers = 1",
    "fn test_github_pat_is_read_from_the_environment() {} my_github_pat_rotation_reminder_job",
    "C:\\new\\task\\bin\\reports\\token-store\\naming.txt and C:\\Users\\jo\\key2024\\notes",
    "dist/locale-sk-9f86d081884c7d659a2feaa0.js dist/i18n_sk-9f86d081884c7d659a2feaa0.js src/task-sk-9f86d081884c7d659a2f.rs",
    "self_hvs.some_long_attribute_name_of_it archvs.another_long_attribute_name MSG.some_long_enum_variant_name.with_an_even_longer_name_of_field_here",
    "npm_config_registry npm_package_dependencies_typescript_version hf_hub_download_with_progress_and_retries gsk_window_set_title_of_the_window",
    "{\"text\": \"line one\\nkey: value\\ntoken: none\\n\\u001b[32mok\\u001b[0m 12 passed\\tpass: 12\"}",
    "%3Dkey%0Atoken%20count%3D12 https://example.org/?q=caf%C3%A9&token_type=bearer&redirect_uri=https%3A%2F%2Fexample.org%2Fauth2",
    "kubectl get secret my-secret-1 -o yaml; git config credential.helper store; ssh-keygen -t ed25519 -C key1",
];

#[test]
fn ordinary_text_and_code_stay() {
    let redactor = redactor();
    let texts = PROSE.iter().chain(&CODE);
    let changed: Vec<String> = texts
        .map(|text| (text, redactor.redact_text(text).0))
        .filter(|(text, redacted)| redacted != *text)
        .map(|(_, redacted)| redacted.into_owned())
        .collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

#[test]
fn requests_and_answers_keep_their_own_fields() {
    let redactor = redactor();
    let mut value = json!({
        "model": "gpt", "max_tokens": 100, "prompt_cache_key": "550e8400-e29b-41d4-a716-446655440000",
        "metadata": { "user_id": "user_9f86d081884c7d659a2f_account__session_550e8400-e29b-41d4-a716-446655440000" },
        "tools": [{ "type": "function", "function": { "name": "login", "parameters": { "type": "object", "required": ["password"],
            "properties": { "password": { "type": "string", "minLength": 8 }, "api_key": { "type": "string", "default": "none" } } } } }],
        "choices": [{ "logprobs": { "content": [{ "token": " password", "logprob": -0.1, "bytes": [32], "top_logprobs": [{ "token": "9f86", "logprob": -2.0 }] }] },
            "message": { "role": "assistant", "content": null, "tool_calls": [{ "id": "call_9f86d081884c7d659a2f", "type": "function",
                "function": { "name": "login", "arguments": "{\"password\": \"${PASSWORD}\"}" } }] } }],
        "thinking": { "signature": drawn(400, 5, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") },
        "system_fingerprint": "fp_44709d6fcb", "id": "resp_67cb71b351908190a308f3859487620d06981a8637e6bc44",
    });
    let before = value.clone();
    let counts = redactor.redact_json(&mut value);
    assert_eq!(value, before, "{counts}");
}

#[test]
fn a_megabyte_of_picture_stays() {
    let redactor = redactor();
    for (salt, alphabet) in [(1, "+/"), (2, "-_"), (3, "")] {
        let letters = format!("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789{alphabet}");
        let text = format!("data:image/png;base64,{}", drawn(1 << 20, salt, &letters));
        assert!(redactor.redact_text(&text).1.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn words_numbers_and_identifiers_stay(words in prop::collection::vec("[a-z]{1,12}|[A-Z][a-z]{1,10}|[0-9]{1,18}|[0-9a-f]{40}|[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}|[a-z]{2,8}_[a-z]{2,8}|[a-z]{2,6}-[a-z]{2,9}-[a-z]{2,9}|[a-z]{1,8}\\.[a-z]{1,4}|[^\\x00-\\x7f]{1,10}", 0..40)) {
        let text = words.join(" ");
        let redactor = redactor();
        let (redacted, counts) = redactor.redact_text(&text);
        prop_assert_eq!(&redacted, &text, "{}", counts);
    }
}
