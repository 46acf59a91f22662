//! Which lines of a container's log does a reader get?
//!
//! Logs are in the CRI format: `time stream F text`, or `P` for a piece of a line that goes on. A full
//! file was renamed to end in `.1`, so that reading begins there.

use bytes::{Bytes, BytesMut};
use futures::Stream;
use jiff::Timestamp;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// What a reader asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) previous: bool,
    follow: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Option<Timestamp>,
    limit: Option<usize>,
    stream: Option<String>,
}

impl Options {
    /// Reads the parameters of `pods/log`; the error is a sentence.
    pub(super) fn parse(query: &str, now: Timestamp) -> Result<Self, String> {
        let mut options = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let flag = || matches!(&*value, "" | "true" | "1");
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|_| format!("{key}: {value:?} is not a number of at least 0"))
            };
            match &*key {
                "follow" => options.follow = flag(),
                "previous" => options.previous = flag(),
                "timestamps" => options.timestamps = flag(),
                "tailLines" => options.tail = Some(number()? as usize),
                "limitBytes" => options.limit = Some(number()? as usize),
                "sinceSeconds" => {
                    let age = Duration::from_secs(number()?);
                    options.since = now.checked_sub(age).ok();
                }
                "sinceTime" => {
                    let time = value.parse();
                    options.since = Some(time.map_err(|_| format!("sinceTime: {value:?} is not a time"))?);
                }
                "stream" if *value != *"All" => options.stream = Some(value.to_lowercase()),
                _ => {}
            }
        }
        Ok(options)
    }
}

/// Picks and renders lines.
#[derive(Debug)]
struct Filter {
    options: Options,
    left: Option<usize>,
    /// The last line was only a piece: the next one goes on without a time.
    open: bool,
}

impl Filter {
    fn new(options: Options) -> Self {
        Self {
            left: options.limit,
            options,
            open: false,
        }
    }

    /// What the reader sees of a raw line, without its line feed; nothing if it is not wanted.
    fn render(&mut self, raw: &[u8]) -> Option<Bytes> {
        let mut parts = raw.splitn(4, |byte| *byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = parts.next()?;
        let tag = parts.next()?;
        let text = parts.next().unwrap_or(&[]);
        if let Some(since) = self.options.since
            && time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return None;
        }
        if self
            .options
            .stream
            .as_ref()
            .is_some_and(|wanted| wanted.as_bytes() != stream)
        {
            return None;
        }
        let piece = tag.first() == Some(&b'P');
        let mut out = BytesMut::with_capacity(text.len() + 40);
        if self.options.timestamps && !self.open {
            out.extend_from_slice(time.as_bytes());
            out.extend_from_slice(b" ");
        }
        out.extend_from_slice(text);
        if !piece {
            out.extend_from_slice(b"\n");
        }
        self.open = piece;
        Some(out.freeze())
    }

    /// Cuts to what is left of the limit; `None` ends the reading.
    fn cut(&mut self, mut bytes: Bytes) -> Option<Bytes> {
        if let Some(left) = &mut self.left {
            if *left == 0 {
                return None;
            }
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        Some(bytes)
    }
}

/// The log as the reader asked for it. Ends with the file, or, if it is followed, with the container.
pub(super) fn stream(
    path: PathBuf,
    alive: watch::Receiver<bool>,
    options: Options,
) -> impl Stream<Item = Bytes> + Send {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        if let Err(error) = read(&path, alive, options, &sender).await {
            tracing::debug!(path = %path.display(), %error, "a log cannot be read");
        }
    });
    futures::stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
        let bytes = receiver.recv().await?;
        Some((bytes, receiver))
    })
}

async fn read(
    path: &Path,
    alive: watch::Receiver<bool>,
    options: Options,
    sender: &mpsc::Sender<Bytes>,
) -> std::io::Result<()> {
    let follow = options.follow;
    let mut reader = Reader {
        tail: options.tail,
        filter: Filter::new(options),
        lines: Lines::default(),
        kept: VecDeque::new(),
        sender,
    };
    let mut rotated = path.as_os_str().to_owned();
    rotated.push(".1");
    if let Ok(mut old) = File::open(&rotated).await
        && !reader.take(&mut old).await?
    {
        return Ok(());
    }
    let mut file = match File::open(path).await {
        Ok(file) => Some(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if let Some(file) = &mut file
        && !reader.take(file).await?
    {
        return Ok(());
    }
    if reader.send_tail().await && follow {
        reader.follow(path, file, alive).await?;
    }
    Ok(())
}

/// One reading of a log. Its functions return whether anybody still wants to read.
struct Reader<'a> {
    filter: Filter,
    lines: Lines,
    /// Only so many of the lines that are there already.
    tail: Option<usize>,
    kept: VecDeque<Bytes>,
    sender: &'a mpsc::Sender<Bytes>,
}

impl Reader<'_> {
    /// Reads a file to its present end.
    async fn take(&mut self, file: &mut File) -> std::io::Result<bool> {
        while let Some(chunk) = next_chunk(file).await? {
            for line in self.lines.push(&chunk) {
                let Some(out) = self.filter.render(&line) else {
                    continue;
                };
                if let Some(most) = self.tail {
                    self.kept.push_back(out);
                    if self.kept.len() > most {
                        self.kept.pop_front();
                    }
                } else if !self.send(out).await {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Sends the last lines of what was there; what comes now is sent as it comes.
    async fn send_tail(&mut self) -> bool {
        self.tail = None;
        for out in std::mem::take(&mut self.kept) {
            if !self.send(out).await {
                return false;
            }
        }
        true
    }

    async fn follow(
        &mut self,
        path: &Path,
        mut file: Option<File>,
        mut alive: watch::Receiver<bool>,
    ) -> std::io::Result<()> {
        loop {
            // What was written before the end was seen is read after it was seen.
            let over = !*alive.borrow_and_update();
            file = reopened(path, file).await?;
            if let Some(file) = &mut file
                && !self.take(file).await?
            {
                return Ok(());
            }
            if over {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                _ = alive.changed() => {}
                () = self.sender.closed() => return Ok(()),
            }
        }
    }

    async fn send(&mut self, out: Bytes) -> bool {
        match self.filter.cut(out) {
            Some(bytes) => self.sender.send(bytes).await.is_ok(),
            None => false,
        }
    }
}

/// The file of this path: the one that is open, unless it was renamed and is read to its end.
async fn reopened(path: &Path, open: Option<File>) -> std::io::Result<Option<File>> {
    let Ok(there) = tokio::fs::metadata(path).await else {
        return Ok(open);
    };
    let Some(mut file) = open else {
        return File::open(path).await.map(Some);
    };
    let same = file.metadata().await?.ino() == there.ino();
    let position = tokio::io::AsyncSeekExt::stream_position(&mut file).await?;
    if same || position < file.metadata().await?.len() {
        return Ok(Some(file));
    }
    File::open(path).await.map(Some)
}

/// What comes next of a file; nothing at its end.
pub(super) async fn next_chunk(file: &mut File) -> std::io::Result<Option<Bytes>> {
    let mut chunk = BytesMut::with_capacity(CHUNK);
    let read = file.read_buf(&mut chunk).await?;
    Ok((read > 0).then(|| chunk.freeze()))
}

/// Cuts bytes into lines; what has no end yet waits.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, chunk: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(chunk);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        whole[..end]
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use std::io::Write;

    const LOG: &str = "2026-11-15T20:00:00.000000001Z stdout F one\n\
                       2026-11-15T20:00:01.5Z stderr P two and \n\
                       2026-11-15T20:00:01.6Z stderr F a half\n\
                       2026-11-15T20:00:02Z stdout F \n\
                       2026-11-15T20:00:03Z stdout F four\n";

    async fn read_all(path: &Path, query: &str) -> String {
        let now = "2026-11-15T20:00:04Z".parse().unwrap();
        let options = Options::parse(query, now).unwrap();
        let (_alive, receiver) = watch::channel(false);
        let chunks: Vec<Bytes> = stream(path.to_owned(), receiver, options).collect().await;
        String::from_utf8(chunks.concat()).unwrap()
    }

    #[tokio::test]
    async fn readers_get_the_lines_they_ask_for() {
        let directory = TempDir::new();
        let path = directory.0.join("0.log");
        std::fs::write(&path, LOG).unwrap();
        for (query, expected) in [
            ("", "one\ntwo and a half\n\nfour\n"),
            ("tailLines=1", "four\n"),
            ("tailLines=0", ""),
            ("sinceSeconds=2", "\nfour\n"),
            ("sinceTime=2026-11-15T20:00:03Z", "four\n"),
            ("limitBytes=6", "one\ntw"),
            ("timestamps=true&tailLines=1", "2026-11-15T20:00:03Z four\n"),
            ("stream=Stderr", "two and a half\n"),
        ] {
            assert_eq!(read_all(&path, query).await, expected, "{query}");
        }
        let now = Timestamp::UNIX_EPOCH;
        assert!(Options::parse("tailLines=-1", now).is_err());
        assert!(Options::parse("sinceTime=yesterday", now).is_err());
    }

    #[tokio::test]
    async fn a_followed_log_goes_on_over_a_rotation_until_the_container_ends() {
        let directory = TempDir::new();
        let path = directory.0.join("0.log");
        std::fs::write(&path, "2026-11-15T20:00:00Z stdout F one\n").unwrap();
        let (alive, receiver) = watch::channel(true);
        let options = Options::parse("follow=true", Timestamp::UNIX_EPOCH).unwrap();
        let mut chunks = std::pin::pin!(stream(path.clone(), receiver, options));
        assert_eq!(&*chunks.next().await.unwrap(), b"one\n");
        let mut file = std::fs::File::options().append(true).open(&path).unwrap();
        file.write_all(b"2026-11-15T20:00:01Z stdout F tw").unwrap();
        file.write_all(b"o\n").unwrap();
        assert_eq!(&*chunks.next().await.unwrap(), b"two\n");
        std::fs::rename(&path, directory.0.join("0.log.1")).unwrap();
        std::fs::write(&path, "2026-11-15T20:00:02Z stdout F three\n").unwrap();
        assert_eq!(&*chunks.next().await.unwrap(), b"three\n");
        alive.send_replace(false);
        assert_eq!(chunks.next().await, None);
    }

    /// A directory that goes away with its value.
    struct TempDir(PathBuf);

    impl TempDir {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("logs-{:016x}", fastrand::u64(..)));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
