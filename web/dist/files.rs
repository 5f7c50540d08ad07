// Made by `cargo xtask web`.
&[
    File {
        path: "/app.css",
        content_type: "text/css; charset=utf-8",
        plain: include_bytes!("app.css"),
        brotli: Some(include_bytes!("app.css.br")),
    },
    File {
        path: "/app.js",
        content_type: "text/javascript; charset=utf-8",
        plain: include_bytes!("app.js"),
        brotli: Some(include_bytes!("app.js.br")),
    },
    File {
        path: "/highlight.js",
        content_type: "text/javascript; charset=utf-8",
        plain: include_bytes!("highlight.js"),
        brotli: Some(include_bytes!("highlight.js.br")),
    },
    File {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        plain: include_bytes!("icon.svg"),
        brotli: Some(include_bytes!("icon.svg.br")),
    },
    File {
        path: "/index.html",
        content_type: "text/html; charset=utf-8",
        plain: include_bytes!("index.html"),
        brotli: Some(include_bytes!("index.html.br")),
    },
    File {
        path: "/licenses.txt",
        content_type: "text/plain; charset=utf-8",
        plain: include_bytes!("licenses.txt"),
        brotli: Some(include_bytes!("licenses.txt.br")),
    },
    File {
        path: "/manifest.webmanifest",
        content_type: "application/manifest+json",
        plain: include_bytes!("manifest.webmanifest"),
        brotli: Some(include_bytes!("manifest.webmanifest.br")),
    },
    File {
        path: "/markdown.js",
        content_type: "text/javascript; charset=utf-8",
        plain: include_bytes!("markdown.js"),
        brotli: Some(include_bytes!("markdown.js.br")),
    },
    File {
        path: "/maths.js",
        content_type: "text/javascript; charset=utf-8",
        plain: include_bytes!("maths.js"),
        brotli: Some(include_bytes!("maths.js.br")),
    },
    File {
        path: "/sw.js",
        content_type: "text/javascript; charset=utf-8",
        plain: include_bytes!("sw.js"),
        brotli: Some(include_bytes!("sw.js.br")),
    },
]
