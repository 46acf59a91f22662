//! Commands, programs and ports that somebody talks to.

use crate::for_both;
use crate::place::{PATIENCE, Place, pod};
use pointsman_runtime::session::{Reader, Session, SessionRequest};
use pointsman_runtime::{Attachable, ContainerId, ExecEnd, RuntimeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

for_both! {
    a_command_has_its_input_its_outputs_and_its_exit_code,
    a_terminal_has_a_size_and_one_output,
    a_command_that_is_not_there_says_so_to_its_client,
    a_program_is_attached_to_and_goes_on_without_its_client,
    a_port_is_reached_from_inside_of_the_pod,
}

async fn open(place: &Place, id: &ContainerId, script: &str, stdin: bool, tty: bool) -> Session {
    let command = ["sh", "-c", script].map(str::to_owned).into();
    let request = SessionRequest { command, stdin, tty };
    place.runtime.open(id, request).await.unwrap()
}

/// All that comes until the end.
async fn all(reader: Option<Reader>) -> Vec<u8> {
    let (mut reader, mut bytes) = (reader.unwrap(), Vec::new());
    let read = timeout(PATIENCE, reader.read_to_end(&mut bytes)).await;
    read.expect("the output ends").unwrap();
    bytes
}

/// What comes until this was among it.
async fn until(reader: &mut Reader, wanted: &str) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains(wanted) {
            assert!(reader.read_buf(&mut bytes).await.unwrap() > 0, "it ended");
        }
    };
    let in_time = timeout(PATIENCE, read).await;
    let said = String::from_utf8_lossy(&bytes).into_owned();
    in_time.unwrap_or_else(|_| panic!("{wanted:?} is not in {said:?}"));
    said
}

async fn a_command_has_its_input_its_outputs_and_its_exit_code(place: Place) {
    let id = place.run("a", "exec sleep 76031").await;
    let session = open(&place, &id, "echo out; echo bad >&2; exit 3", false, false).await;
    assert!(session.stdin.is_none() && session.terminal.is_none());
    let (out, errors) = tokio::join!(all(session.stdout), all(session.stderr));
    assert_eq!((&*out, &*errors), (&b"out\n"[..], &b"bad\n"[..]));
    assert_eq!(session.end.await.unwrap(), ExecEnd::Exited(3));

    // More than fits into all buffers on the way, and no text.
    let large: Vec<u8> = (0..3_u32 << 20)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut session = open(&place, &id, "cat", true, false).await;
    let mut stdin = session.stdin.take().unwrap();
    let fed = async {
        stdin.write_all(&large).await.unwrap();
        stdin.shutdown().await.unwrap();
        drop(stdin);
    };
    let (out, ()) = tokio::join!(all(session.stdout), fed);
    assert!(out == large, "{} bytes came back", out.len());
    assert_eq!(session.end.await.unwrap(), ExecEnd::Exited(0));
    place.remove("a").await;
}

async fn a_terminal_has_a_size_and_one_output(place: Place) {
    let id = place.run("a", "exec sleep 76032").await;
    let wide = "while [ \"$(busybox stty size)\" != '33 101' ]; do sleep 0.05; done; echo wide >&2; read word; echo $word; exit 7";
    let mut session = open(&place, &id, wide, true, true).await;
    assert!(session.stderr.is_none());
    session.terminal.as_ref().unwrap().resize(101, 33).unwrap();
    let mut stdout = session.stdout.take().unwrap();
    until(&mut stdout, "wide\r\n").await;
    session
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"hello\n")
        .await
        .unwrap();
    // What is typed is shown, too.
    until(&mut stdout, "hello\r\nhello\r\n").await;
    assert_eq!(session.end.await.unwrap(), ExecEnd::Exited(7));
    place.remove("a").await;
}

async fn a_command_that_is_not_there_says_so_to_its_client(place: Place) {
    let id = place.run("a", "exec sleep 76033").await;
    let request = SessionRequest {
        command: vec!["no-such-program".into()],
        stdin: false,
        tty: false,
    };
    let ended = match place.runtime.open(&id, request.clone()).await {
        Ok(session) => session.end.await.map(drop),
        Err(error) => Err(error),
    };
    let message = match ended {
        Err(RuntimeError::CannotStart { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    assert!(
        message.contains("executable file not found in $PATH"),
        "{message}"
    );
    place
        .runtime
        .stop(&id, pointsman_runtime::Signal::KILL, PATIENCE)
        .await
        .unwrap();
    assert!(matches!(
        place.runtime.open(&id, request).await,
        Err(RuntimeError::NotRunning(_))
    ));
    place.remove("a").await;
}

async fn a_program_is_attached_to_and_goes_on_without_its_client(place: Place) {
    place.open("a").await;
    let script = "while read line; do [ \"$line\" = end ] && exit 0; echo got $line; done";
    let mut spec = place.shell("a", 0, script);
    spec.attachable = Attachable {
        stdin: true,
        ..Attachable::default()
    };
    let wants = spec.attachable;
    let id = place.runtime.start(spec).await.unwrap().id;
    for line in ["one", "two"] {
        let mut session = place.runtime.attach(&id, wants).await.unwrap();
        let stdin = session.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        until(session.stdout.as_mut().unwrap(), &format!("got {line}\n")).await;
    }
    let mut session = place.runtime.attach(&id, wants).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"end\n").await.unwrap();
    // Nothing is said at the end: containerd may cut off what a program writes right before it.
    assert_eq!(all(session.stdout).await, b"");
    timeout(PATIENCE, session.end).await.unwrap().unwrap();
    assert_eq!(place.exit(&id).await.code, 0);
    place.remove("a").await;
}

async fn a_port_is_reached_from_inside_of_the_pod(place: Place) {
    let serve = "mkdir -p /tmp/web; echo hello >/tmp/web/index.html; exec busybox httpd -f -p 127.0.0.1:7070 -h /tmp/web";
    place.run("a", serve).await;
    let pod = pod("a");
    // It may not listen yet.
    let connected = async {
        loop {
            match place.runtime.connect(&pod, 7070).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    let mut stream = timeout(PATIENCE, connected).await.expect("it listens");
    let mut said = String::new();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.ends_with("\r\n\r\nhello\n"), "{said}");
    let refused = place.runtime.connect(&pod, 7071).await.unwrap_err();
    assert!(refused.to_string().contains("port 7071"), "{refused}");
    place.remove("a").await;
}
