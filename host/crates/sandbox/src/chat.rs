//! Conversations that a guest hands over, checked: roles, counts and sizes.

use reef_core::Message;

use crate::text::clean;

/// Bytes of all messages of one conversation.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Roles of a message.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// 1 to `messages_max` messages with known roles and at most [`MESSAGE_BYTES_MAX`] bytes. The error is a sentence.
pub(crate) fn check_conversation(messages: &[Message], messages_max: usize) -> Result<(), String> {
    if messages.is_empty() || messages.len() > messages_max {
        return Err(format!("messages: {} is not in 1 to {messages_max}", messages.len()));
    }
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    if bytes > MESSAGE_BYTES_MAX {
        return Err(format!("messages: {bytes} bytes and at most {MESSAGE_BYTES_MAX} are allowed"));
    }
    match messages.iter().find(|message| !ROLES.contains(&message.role.as_str())) {
        Some(message) => Err(format!("messages: role '{}' is none of {}", clean(&message.role, 32), ROLES.join(", "))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, bytes: usize) -> Message {
        Message { role: role.into(), content: "x".repeat(bytes) }
    }

    #[test]
    fn a_conversation_has_known_roles_and_a_bounded_size() {
        assert_eq!(check_conversation(&[message("system", 1), message("user", 1)], 2), Ok(()));
        assert!(check_conversation(&[], 2).expect_err("none").starts_with("messages: 0"));
        assert!(check_conversation(&[message("root\u{1b}", 1)], 2).expect_err("role").contains("role 'root\\u{1b}'"));
        assert!(check_conversation(&[message("user", MESSAGE_BYTES_MAX + 1)], 2).expect_err("size").contains("bytes"));
        assert!(check_conversation(&vec![message("user", 0); 3], 2).is_err());
    }
}
