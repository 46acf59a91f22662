//! Which of the files that programs of this machine log to may be read?
//!
//! `/logs/` is the directory of logs, as with the kubelet: directories are listed, files are read. Links lead to nothing that
//! is not in it, since pods may have been given a part of it to write to.

use super::logs::next_chunk;
use bytes::Bytes;
use http::{Response, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use pointsman_http::{Body, reply, stream, text};
use std::io;
use std::path::{Component, Path, PathBuf};
use tokio::fs::File;

/// The directory of logs.
pub(super) const ROOT: &str = "/var/log";
/// Where it is served.
const PLACE: &str = "/logs";
/// More entries of a directory are not listed.
const MOST: usize = 10_000;
/// Letters of names that stay as they are in links.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Answers a question for a path below [`PLACE`].
pub(super) async fn answer(root: &Path, path: &str) -> Response<Body> {
    let asked = path
        .trim_start_matches('/')
        .strip_prefix(&PLACE[1..])
        .unwrap_or_default();
    let found = match find(root, asked).await {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    if !found.is_dir() {
        return match File::open(&found).await {
            Ok(file) => stream("text/plain; charset=utf-8", chunks(file)),
            Err(error) => refused(&error),
        };
    }
    // Links are relative to the directory.
    if !path.ends_with('/') {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut answer = text(StatusCode::MOVED_PERMANENTLY, "");
        if let Ok(place) = format!("{name}/").parse() {
            answer.headers_mut().insert(header::LOCATION, place);
        }
        return answer;
    }
    match list(&found).await {
        Ok(page) => reply(StatusCode::OK, "text/html; charset=utf-8", page),
        Err(error) => refused(&error),
    }
}

/// The file or directory that is asked for, with all links followed.
async fn find(root: &Path, asked: &str) -> io::Result<PathBuf> {
    let decoded = percent_decode_str(asked.trim_matches('/')).decode_utf8();
    let decoded = decoded.map_err(|_| io::ErrorKind::NotFound)?;
    let parts = Path::new(&*decoded);
    if !parts
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        return Err(io::ErrorKind::NotFound.into());
    }
    let root = tokio::fs::canonicalize(root).await?;
    let found = tokio::fs::canonicalize(root.join(parts)).await?;
    let kind = tokio::fs::metadata(&found).await?.file_type();
    // A pipe would keep whoever opens it.
    match found.starts_with(&root) && (kind.is_dir() || kind.is_file()) {
        true => Ok(found),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

async fn list(directory: &Path) -> io::Result<String> {
    let mut entries = tokio::fs::read_dir(directory).await?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        let slash = if entry.file_type().await?.is_dir() {
            "/"
        } else {
            ""
        };
        names.push((entry.file_name().to_string_lossy().into_owned(), slash));
        if names.len() >= MOST {
            break;
        }
    }
    names.sort_unstable();
    let lines = names.iter().map(|(name, slash)| {
        let link = utf8_percent_encode(name, ENCODED);
        let shown = name.replace('&', "&amp;").replace('<', "&lt;");
        format!("<a href=\"./{link}{slash}\">{shown}{slash}</a>\n")
    });
    Ok(format!(
        "<!doctype html>\n<pre>\n{}</pre>\n",
        lines.collect::<String>()
    ))
}

fn chunks(file: File) -> impl futures::Stream<Item = Bytes> + Send {
    futures::stream::unfold(file, async |mut file| {
        let chunk = next_chunk(&mut file).await.ok()??;
        Some((chunk, file))
    })
}

fn refused(error: &io::Error) -> Response<Body> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => text(StatusCode::NOT_FOUND, "not found"),
        _ => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::fs;

    async fn ask(root: &Path, path: &str) -> (u16, String) {
        let answer = answer(root, path).await;
        let code = answer.status().as_u16();
        let place = answer.headers().get(header::LOCATION).cloned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let place = place.map(|place| place.to_str().unwrap().to_owned());
        (
            code,
            place.unwrap_or_else(|| String::from_utf8(body.to_vec()).unwrap()),
        )
    }

    #[tokio::test]
    async fn logs_are_listed_and_read_and_nothing_beside_them() {
        let home = std::env::temp_dir().join(format!("files-{:016x}", fastrand::u64(..)));
        let root = home.join("log");
        fs::create_dir_all(root.join("pods")).unwrap();
        fs::write(root.join("a b<.log"), "one\n").unwrap();
        fs::write(root.join("pods/0.log"), vec![b'x'; 100_000]).unwrap();
        fs::write(home.join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        std::os::unix::fs::symlink("pods/0.log", root.join("inner")).unwrap();

        let (code, page) = ask(&root, "/logs/").await;
        assert_eq!(code, 200);
        let names: Vec<&str> = page.lines().filter(|line| line.starts_with("<a")).collect();
        assert_eq!(names[0], "<a href=\"./a%20b%3C.log\">a b&lt;.log</a>", "{page}");
        assert_eq!(names[3], "<a href=\"./pods/\">pods/</a>", "{page}");
        assert_eq!(ask(&root, "/logs/a%20b%3C.log").await, (200, "one\n".into()));
        assert_eq!(ask(&root, "/logs/inner").await.1.len(), 100_000);
        assert_eq!(ask(&root, "/logs").await, (301, "logs/".into()));
        assert_eq!(ask(&root, "/logs/pods").await, (301, "pods/".into()));
        for path in [
            "/logs/link",
            "/logs/../secret",
            "/logs/%2e%2e/secret",
            "/logs/no",
            "/logs/inner/x",
            "/logs/%ff",
        ] {
            assert_eq!(ask(&root, path).await.0, 404, "{path}");
        }
        fs::remove_dir_all(home).unwrap();
    }
}
