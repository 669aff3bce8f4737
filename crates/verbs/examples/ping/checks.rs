//! Checks of connections and of work.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nvmeof_verbs::system::SystemTicket;
use nvmeof_verbs::{
    AcceptParams, AccessFlags, CompletionQueue, ConnectionEvent, Endpoint, MemoryRegion,
    PendingConnection, SendOp, Sge, WcStatus, WorkCompletion, WrId,
};
use nvmeof_verbs_conformance::{READS, pattern};

use super::ends::{
    Ends, Shape, ask, end, event, is_readable, listen, request, route, until, wakes,
};

pub(crate) fn private_data(address: IpAddr) -> Result<()> {
    let ends = Ends::new(address, Shape::Own)?;
    let (data, reads) = ends.request;
    ensure!(data.as_slice().starts_with(b"ask"), "the request had {data:?}");
    ensure!(reads == (READS, READS), "the request had depths {reads:?}");
    let (data, reads_out) = ends.acceptance;
    ensure!(data.as_slice().starts_with(b"answer"), "the acceptance had {data:?}");
    ensure!(reads_out == READS, "the acceptance had depth {reads_out}");
    Ok(())
}

pub(crate) fn refusal(address: IpAddr) -> Result<()> {
    let mut listener = listen(address)?;
    let mut asking = end(route(&listener)?, Shape::Own)?;
    ask(asking.endpoint(), b"ask", 7)?;
    request(&mut listener)?.reject(b"no, thank you");
    match event(asking.endpoint())? {
        ConnectionEvent::Rejected { private_data, .. }
            if private_data.as_slice().starts_with(b"no, thank you") =>
        {
            Ok(())
        }
        other => bail!("{other:?}"),
    }
}

/// Earlier receives are flushed when the queue pair is stopped, although it was never ready.
pub(crate) fn refused_receives(address: IpAddr) -> Result<()> {
    let mut listener = listen(address)?;
    let mut asking = end(route(&listener)?, Shape::Own)?;
    for id in 0..4 {
        asking.receive(id, 0, 64)?;
    }
    ask(asking.endpoint(), b"ask", 7)?;
    request(&mut listener)?.reject(&[]);
    event(asking.endpoint())?;
    asking.endpoint().disconnect();
    let mut flushed = vec![];
    until("the receives", || {
        asking.poll()?;
        flushed.extend(asking.take());
        Ok((flushed.len() >= 4).then_some(()))
    })?;
    let good = |one: &WorkCompletion| one.status == WcStatus::Flushed;
    ensure!(flushed.len() == 4 && flushed.iter().all(good), "{flushed:?}");
    Ok(())
}

pub(crate) fn dropped_request(address: IpAddr) -> Result<()> {
    let mut listener = listen(address)?;
    let mut asking = end(route(&listener)?, Shape::Own)?;
    ask(asking.endpoint(), b"ask", 7)?;
    drop(request(&mut listener)?);
    match event(asking.endpoint())? {
        ConnectionEvent::Rejected { .. } => Ok(()),
        other => bail!("{other:?}"),
    }
}

pub(crate) fn traffic_class(address: IpAddr) -> Result<()> {
    const CLASS: u8 = 26 << 2;
    let mut pair = Ends::of_class(address, CLASS)?.pair;
    for end in [&mut pair.asking, &mut pair.answering] {
        let class = end.endpoint().traffic_class()?;
        ensure!(class == CLASS, "{class:#x} is set, not {CLASS:#x}");
    }
    Ok(())
}

/// Opens and closes connections, each accepted on its own thread, while one stays.
pub(crate) fn leaks(address: IpAddr) -> Result<()> {
    let _stays = Ends::new(address, Shape::Shared)?;
    let before = descriptors()?;
    for round in 0..25_u32 {
        let mut listener = listen(address)?;
        let mut asking = end(route(&listener)?, Shape::Own)?;
        ask(asking.endpoint(), b"ask", 7)?;
        let ticket = request(&mut listener)?;
        match round % 4 {
            // Opened and dropped, rejected, dropped.
            0 => drop(end(ticket, Shape::Own)?),
            1 => ticket.reject(&[]),
            2 => drop(ticket),
            // Accepted and dropped on another thread.
            _ => std::thread::spawn(move || accepted_and_dropped(ticket))
                .join()
                .map_err(|_| anyhow!("the thread panicked"))??,
        }
        if round % 2 == 0 {
            event(asking.endpoint())?;
        }
    }
    let after = descriptors()?;
    ensure!(before == after, "{before} descriptors before, {after} after");
    Ok(())
}

fn accepted_and_dropped(ticket: SystemTicket) -> Result<()> {
    let mut answering = end(ticket, Shape::Shared)?;
    answering.receive(0, 0, 64)?;
    answering.endpoint().accept(&AcceptParams {
        private_data: &[],
        reads_out: READS,
        reads_in: READS,
        rnr_retries: 7,
    })?;
    Ok(())
}

/// Number of descriptors of this process: one for each connection, each completion queue, each
/// device.
fn descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

pub(crate) fn chain(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    let bytes = pattern(3, 9_000);
    pair.asking.memory_mut().fill(0, &bytes);
    pair.answering.receive(7, 0, 64)?;
    let peer = pair.answering.memory();
    let at = |offset| SendOp::Write { address: peer.address(offset), key: peer.rkey() };
    let mut first = pair.asking.work(1, at(100_000), 0, 4_000);
    ensure!(first.pieces.push(pair.asking.memory().piece(4_000, 2_000)), "two pieces fit");
    let mut second = pair.asking.work(2, at(106_000), 6_000, 3_000);
    first.signaled = false;
    second.signaled = false;
    let send = pair.asking.work(3, SendOp::Send, 0, 16);
    pair.asking.post(&[first, second, send])?;
    let (sent, received) = pair.completions(1, 1);
    ensure!(sent.len() == 1 && sent[0].id.slot() == 3, "{sent:?}");
    ensure!(sent[0].status == WcStatus::Success, "{sent:?}");
    ensure!(received.len() == 1 && received[0].bytes == 16, "{received:?}");
    ensure!(pair.answering.memory().bytes(100_000, 9_000) == bytes, "the bytes differ");
    for _ in 0..20 {
        pair.pass();
    }
    ensure!(pair.asking.take().is_empty(), "an unsignaled write completed");
    Ok(())
}

pub(crate) fn inline(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    let room = pair.asking.endpoint().inline();
    ensure!(room >= 16, "the device takes {room} bytes inline");
    pair.answering.receive(0, 8_192, 64)?;
    pair.asking.memory_mut().fill(0, b"sixteen bytes!!!");
    let mut send = pair.asking.work(0, SendOp::Send, 0, 16);
    send.inline = true;
    let piece = Sge { lkey: 0xdead, ..send.pieces.as_slice()[0] };
    send.pieces = nvmeof_verbs::SgeList::one(piece);
    pair.asking.post(&[send])?;
    // Reusable immediately.
    pair.asking.memory_mut().fill(0, &[0; 16]);
    let (sent, received) = pair.completions(1, 1);
    ensure!(sent[0].status == WcStatus::Success, "{sent:?}");
    ensure!(received[0].bytes == 16, "{received:?}");
    ensure!(pair.answering.memory().bytes(8_192, 16) == b"sixteen bytes!!!", "other bytes");
    Ok(())
}

pub(crate) fn window(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    let device = Arc::clone(pair.asking.device());
    let mut bytes = vec![0_u8; 8_192].into_boxed_slice();
    let access = AccessFlags { local_write: true, remote_read: true, remote_write: true };
    // SAFETY: the bytes are dropped after the region, because they are declared before it.
    let region = unsafe { device.register_bindable(bytes.as_mut_ptr(), bytes.len(), access)? };
    let mut window = device.window()?.context("the device has no memory windows of type 2")?;
    let base = bytes.as_ptr().addr() as u64;
    let part = Sge { address: base + 4_096, length: 4_096, lkey: region.lkey() };
    let id = WrId::new(b'w', 0, 1);
    let key = pair.asking.endpoint().bind_window(id, &mut window, &region, part, access)?;
    pair.asking.receive(5, 0, 64)?;
    let (bound, _) = pair.completions(1, 0);
    ensure!(bound[0].id == id && bound[0].status == WcStatus::Success, "{bound:?}");

    pair.answering.memory_mut().fill(0, &pattern(8, 100));
    let at = SendOp::Write { address: base + 4_096, key };
    let mut write = pair.answering.work(1, at, 0, 100);
    write.signaled = false;
    let send = pair.answering.work(2, SendOp::SendInvalidate { key }, 0, 16);
    pair.answering.post(&[write, send])?;
    let (received, sent) = pair.completions(1, 1);
    ensure!(sent[0].status == WcStatus::Success, "{sent:?}");
    ensure!(received[0].invalidated == Some(key), "{received:?}, not {key:#x}");
    ensure!(bytes[4_096..4_196] == pattern(8, 100), "the bytes differ");

    // The key is invalid now.
    let write = pair.answering.work(3, at, 0, 100);
    pair.answering.post(&[write])?;
    let (_, failed) = pair.completions(0, 1);
    ensure!(failed[0].status == WcStatus::RemoteAccess, "{failed:?}");
    drop(pair);
    drop(window);
    drop(region);
    Ok(())
}

pub(crate) fn wake_up(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    for round in 0..3 {
        pair.answering.receive(round, 0, 64)?;
        pair.answering.completions().arm()?;
        let readable = is_readable(pair.answering.completions().fd(), Duration::ZERO)?;
        ensure!(!readable, "readable without a completion in round {round}");
        let send = pair.asking.work(round, SendOp::Send, 0, 8);
        pair.asking.post(&[send])?;
        ensure!(wakes(pair.answering.completions().fd())?, "no wake-up in round {round}");
        let (_, received) = pair.completions(1, 1);
        ensure!(received[0].id.slot() == round, "{received:?}");
    }
    pair.answering.completions().arm()?;
    let readable = is_readable(pair.answering.completions().fd(), Duration::ZERO)?;
    ensure!(!readable, "still readable after it was armed again");
    Ok(())
}

pub(crate) fn flush(address: IpAddr) -> Result<()> {
    const POSTED: u32 = 32;
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    for id in 0..POSTED {
        pair.answering.receive(id, 0, 64)?;
    }
    pair.asking.endpoint().disconnect();
    until("the news of the end", || {
        pair.pass();
        let events = pair.answering.take_events();
        Ok(events.contains(&ConnectionEvent::Disconnected).then_some(()))
    })?;
    pair.answering.endpoint().disconnect();
    let (_, flushed) = pair.completions(0, POSTED as usize);
    ensure!(flushed.len() == POSTED as usize, "{} came back", flushed.len());
    for (id, completion) in (0..POSTED).zip(&flushed) {
        let good = completion.status == WcStatus::Flushed && completion.id.slot() == id;
        ensure!(good, "{completion:?}");
    }
    Ok(())
}

pub(crate) fn dropped_endpoint(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    pair.asking.drop_endpoint();
    match event(pair.answering.endpoint())? {
        ConnectionEvent::Disconnected => Ok(()),
        other => bail!("{other:?}"),
    }
}

pub(crate) fn late_receive(address: IpAddr) -> Result<()> {
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    let send = pair.asking.work(1, SendOp::Send, 0, 8);
    pair.asking.post(&[send])?;
    for _ in 0..50 {
        pair.pass();
    }
    ensure!(pair.asking.take().is_empty(), "the send ended without a receive");
    pair.answering.receive(1, 0, 64)?;
    let (sent, received) = pair.completions(1, 1);
    ensure!(sent[0].status == WcStatus::Success, "{sent:?}");
    ensure!(received[0].status == WcStatus::Success, "{received:?}");
    Ok(())
}

pub(crate) fn no_receive(address: IpAddr) -> Result<()> {
    let mut pair = Ends::with_tries(address, Shape::Own, 2)?.pair;
    let send = pair.asking.work(1, SendOp::Send, 0, 8);
    pair.asking.post(&[send])?;
    let (sent, _) = pair.completions(1, 0);
    ensure!(sent[0].status == WcStatus::ReceiverNotReady, "{sent:?}");
    Ok(())
}

/// The queue pair of the written side fails, too, and its descriptor becomes readable.
pub(crate) fn wrong_key(address: IpAddr, shape: Shape) -> Result<()> {
    let mut pair = Ends::new(address, shape)?.pair;
    pair.answering.receive(4, 0, 64)?;
    let peer = pair.answering.memory();
    let wrong = SendOp::Write { address: peer.address(0), key: peer.rkey() ^ 0x0055_aa00 };
    let write = pair.asking.work(1, wrong, 0, 8);
    pair.asking.post(&[write])?;
    let (failed, _) = pair.completions(1, 0);
    ensure!(failed[0].status == WcStatus::RemoteAccess, "{failed:?}");
    match shape {
        Shape::Own => {
            let (_, back) = pair.completions(0, 1);
            ensure!(back[0].status != WcStatus::Success, "{back:?}");
        }
        Shape::Shared => {
            let fd = pair.answering.endpoint().fd().context("a descriptor")?;
            ensure!(wakes(fd)?, "the side that was written to is not told ({shape})");
            let told = event(pair.answering.endpoint())?;
            ensure!(told == ConnectionEvent::QueuePairError, "{told:?}");
            let fd = pair.answering.endpoint().fd().context("a descriptor")?;
            ensure!(!is_readable(fd, Duration::ZERO)?, "still readable");
        }
    }
    Ok(())
}
