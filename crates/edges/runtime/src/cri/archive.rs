//! How is an image made from files, without a registry or a program that builds images?
//!
//! As the archive that `docker save` writes, which every container runtime imports.

use serde_json::json;
use std::fmt::Write;

/// One file of an image.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A program and its bytes.
    Program(&'a [u8]),
    /// A symbolic link to this path.
    Link(&'a str),
}

/// The name of the image that holds a pod's namespaces, see [`pause`].
pub const PAUSE: &str = "pointsman.io/pause:1";

/// An image of one layer.
pub fn image(name: &str, files: &[(&str, Entry<'_>)], entrypoint: &[&str]) -> Vec<u8> {
    let mut layer = Tar::default();
    for (path, entry) in files {
        match entry {
            Entry::Program(bytes) => layer.add(path, b'0', "", bytes),
            Entry::Link(to) => layer.add(path, b'2', to, &[]),
        }
    }
    let layer = layer.finish();
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": entrypoint,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))] },
    });
    let config = config.to_string();
    let config_name = format!("{}.json", digest(config.as_bytes()));
    let manifest = json!([{ "Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut archive = Tar::default();
    archive.add(&config_name, b'0', "", config.as_bytes());
    archive.add("manifest.json", b'0', "", manifest.to_string().as_bytes());
    archive.add("layer.tar", b'0', "", &layer);
    archive.finish()
}

/// The image of the container that holds a pod's namespaces: a program that waits for ever, written down as the bytes
/// that it is, because nothing else is at hand on every machine.
pub fn pause() -> Vec<u8> {
    // Begins over whenever a signal ends the wait.
    let (machine, code): (u16, &[u8]) = match architecture() {
        // mov w8, #73 (ppoll); mov x0..x4, xzr; svc #0; b to the first
        "arm64" => (
            183,
            &[
                0x28, 0x09, 0x80, 0x52, 0xe0, 0x03, 0x1f, 0xaa, 0xe1, 0x03, 0x1f, 0xaa, 0xe2, 0x03, 0x1f,
                0xaa, 0xe3, 0x03, 0x1f, 0xaa, 0xe4, 0x03, 0x1f, 0xaa, 0x01, 0x00, 0x00, 0xd4, 0xf9, 0xff,
                0xff, 0x17,
            ],
        ),
        // mov eax, 34 (pause); syscall; jmp to the first
        _ => (62, &[0xb8, 0x22, 0x00, 0x00, 0x00, 0x0f, 0x05, 0xeb, 0xf7]),
    };
    image(
        PAUSE,
        &[("pause", Entry::Program(&elf(machine, code)))],
        &["/pause"],
    )
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// A program that is nothing but this code.
fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x0040_0000;
    const HEADERS: u16 = 64 + 56;
    let size = u64::from(HEADERS) + code.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let word = |file: &mut Vec<u8>, number: u16| file.extend(number.to_le_bytes());
    let long = |file: &mut Vec<u8>, number: u32| file.extend(number.to_le_bytes());
    let wide = |file: &mut Vec<u8>, number: u64| file.extend(number.to_le_bytes());
    word(&mut file, 2);
    word(&mut file, machine);
    long(&mut file, 1);
    wide(&mut file, BASE + u64::from(HEADERS));
    wide(&mut file, 64);
    wide(&mut file, 0);
    long(&mut file, 0);
    for number in [64, 56, 1, 64, 0, 0] {
        word(&mut file, number);
    }
    // One segment, the whole file, to be read and executed.
    long(&mut file, 1);
    long(&mut file, 5);
    for number in [0, BASE, BASE, size, size, 0x1000] {
        wide(&mut file, number);
    }
    file.extend(code);
    file
}

/// A tape archive.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn add(&mut self, path: &str, kind: u8, link: &str, bytes: &[u8]) {
        let mut header = [0; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        put(100, b"0000755\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", bytes.len()).as_bytes());
        put(136, b"00000000000\0");
        // The sum of the header counts itself as blanks.
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
