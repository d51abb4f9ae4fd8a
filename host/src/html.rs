//! Pieces of the pages that people look at: text made safe, and tables of it.
//! The demo's page and the page of a step are put together from them. Pages have no scripts and no outside resources.

use std::borrow::Cow;

/// Text that is safe between tags and in quoted attributes.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;")
            .replace('\'', "&#39;"),
    )
}

/// A table; rows are HTML already.
pub fn table(class: &str, heads: &[&str], rows: impl Iterator<Item = String>) -> String {
    let heads: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
    format!(
        "<div class=\"scroll\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead><tbody>{}</tbody></table></div>",
        rows.collect::<String>()
    )
}

/// A row of a table; cells are HTML already.
pub fn row(cells: &[Cow<'_, str>]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr>{cells}</tr>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_read_as_html() {
        assert_eq!(escape("<b a='x'>&\"</b>"), "&lt;b a=&#39;x&#39;&gt;&amp;&quot;&lt;/b&gt;");
        assert!(matches!(escape("plain"), Cow::Borrowed("plain")));
    }
}
