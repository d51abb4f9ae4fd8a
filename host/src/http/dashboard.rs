//! `GET /reef/ui`: the dashboard. A page without data of its own: its script asks the other routes with the token that the
//! person gives it, places whatever comes back as text, and loads nothing from elsewhere.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

/// Scripts and styles are the page's own; data comes from this server alone.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("dashboard.html").replace("/*STYLE*/", include_str!("page.css")));

/// The page.
pub async fn show() -> Response {
    let heads = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (heads, Html(PAGE.as_str())).into_response()
}
