"""report.html: what an audit found, in one file that needs no network, fits a phone and knows the dark mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from wal.spark.audit.html import (
    bars,
    count_or_none,
    counted,
    document,
    lines,
    ratio,
    section,
    size,
    size_or_none,
    span,
    table,
    text,
    time_labels,
    when,
)

if TYPE_CHECKING:
    from wal.spark.audit.job import Audit

MOST_CURVES = 6


def page(audit: Audit) -> str:
    """The whole report."""
    parts = [_head(audit), _damage(audit), _rates(audit), _channels(audit), _groups(audit), _sizes(audit), _keys(audit)]
    return document(f"Audit of {audit.report.directory}", *parts, _producers(audit), _segments(audit))


def _head(audit: Audit) -> str:
    report = audit.report
    left = sum(row["state"] == "left" for row in audit.tables.get("segments", ()))
    if report.is_intact:
        word = '<p class="verdict good">The log is intact.</p>'
    else:
        word = f'<p class="verdict bad">The log is damaged: {counted(len(report.damage), "range")} can\'t be read.</p>'
    saved = sum(audit.savings.values())
    share = f" ({saved / report.bytes:.0%})" if report.bytes else ""
    facts = {
        "segments": f"{report.segments:,}",
        "records": f"{report.frames:,}",
        "messages": f"{report.messages:,}",
        "size": size(report.bytes),
        "compaction would free": size(saved) + share,
        "read in": f"{audit.seconds:.1f} s, {size(int(report.bytes / max(audit.seconds, 1e-9)))}/s",
    }
    told = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts.items())
    notes = []
    if report.torn_bytes:
        notes.append(f"{report.torn_bytes:,} bytes at the end of the live segment were never durable: not damage.")
    if left:
        notes.append(f"{counted(left, 'segment')} left the log while the audit ran, and could not be read: not damage.")
    looked = (
        "every message was looked into" if audit.is_deep else "sizes, keys and compression are from a sample of 1 %"
    )
    return (
        f"<h1>Audit of <code>{escape(report.directory)}</code></h1>"
        f'<p class="soft">log {report.log_uuid}, {when(audit.made_us)} UTC; {looked}</p>'
        f"<section>{word}{''.join(f'<p>{note}</p>' for note in notes)}<div class='facts'>{told}</div></section>"
    )


def _damage(audit: Audit) -> str:
    def lost(offsets: Sequence[Mapping[str, Any]]) -> str:
        some = [
            f"{each['channel_id']}/{each['partition']}: {each['start']} to {each['end'] - 1}" for each in offsets[:8]
        ]
        return ", ".join(some) + (" …" if len(offsets) > 8 else "")

    rows = [
        (each["segment"], f"{each['position']:,} to {each['end']:,}",
         f"{each['first_sequence']} to {each['last_sequence']}",
         each["reason"], lost(each["offsets"]))
        for each in audit.tables.get("damage", ())
    ]  # fmt: skip
    return (
        section("Damage", table(("segment:t", "bytes", "sequences", "what:t", "offsets lost:t"), rows)) if rows else ""
    )


def _rates(audit: Audit) -> str:
    rates = audit.tables.get("rates", [])
    if not rates:
        return ""
    times = sorted({row["start_us"] for row in rates})
    times = list(range(times[0], times[-1] + 1, audit.width_us))
    seconds = audit.width_us / 1e6
    curves = _curves(rates, lambda row: row["channel"], "messages", times, scale=1 / seconds)
    sizes = _curves(rates, lambda row: row["channel"], "bytes", times, scale=1 / seconds)
    labels = time_labels(times)
    return section(
        "Published over time",
        "<h3>messages per second</h3>" + lines(labels, curves, "messages per second by channel"),
        "<h3>bytes per second</h3>" + lines(labels, sizes, "bytes per second by channel"),
    )


def _channels(audit: Audit) -> str:
    rows = [
        (row["channel"] + (" (deleted)" if row["is_deleted"] else ""), f"{row['partitions']}", f"{row['messages']:,}",
         size(row["bytes"]), f"{row['messages'] / max(1, row['frames']):.1f}", size_or_none(row["mean_size"]),
         ratio(row["compression"]), size(row["dead_bytes"]), when(row["min_us"]), when(row["max_us"]))
        for row in sorted(audit.tables.get("channels", ()), key=lambda row: -row["bytes"])
    ]  # fmt: skip
    columns = (
        "channel:t",
        "partitions",
        "messages",
        "bytes",
        "per batch",
        "mean size",
        "compresses",
        "to free",
        "first",
        "last",
    )
    return section("Channels", table(columns, rows)) if rows else ""


def _groups(audit: Audit) -> str:
    groups = audit.tables.get("groups", [])
    if not groups:
        return ""
    rows = [
        (f"{row['channel']} / {row['group']}", f"{row['acked']:,}",
         count_or_none(row["lag"]), count_or_none(row["max_lag"]),
         span(row["ack_p50"]), span(row["ack_p90"]), span(row["ack_p99"]), span(row["ack_p999"]),
         f"{row['redelivered']:,}", f"{row['max_deliveries']}", f"{row['dead_letters']:,}")
        for row in groups
    ]  # fmt: skip
    columns = (
        "group:t",
        "acked",
        "lag",
        "most",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "redelivered",
        "deliveries",
        "dead letters",
    )
    parts = [table(columns, rows)]
    lags = audit.tables.get("lags", [])
    if lags:
        times = sorted({row["start_us"] for row in lags})
        curves = _curves(lags, lambda row: f"{row['channel']} / {row['group']}", "lag", times, carry=True)
        parts.append("<h3>messages behind</h3>" + lines(time_labels(times), curves, "lag of groups over time"))
    for name, histogram in _histograms(audit.tables.get("latencies", [])).items():
        buckets = sorted(histogram)
        powers = range(min(buckets), max(buckets) + 1)
        labels = [span(2.0**power) for power in powers]
        parts.append(f"<h3>{escape(name)}: from publish to ack</h3>")
        parts.append(bars(labels, [histogram.get(power, 0) for power in powers], f"latency of {name}"))
    reasons = [
        (f"{row['channel']} / {row['group']}", row["reason"], f"{row['messages']:,}")
        for row in sorted(audit.tables.get("reasons", ()), key=lambda row: -row["messages"])
    ]
    if reasons:
        parts += ["<h3>dead letters by reason</h3>", table(("group:t", "reason:t", "messages"), reasons)]
    return section("Groups", *parts)


def _sizes(audit: Audit) -> str:
    sizes, batches = audit.tables.get("sizes", []), audit.tables.get("batches", [])
    if not sizes and not batches:
        return ""
    parts = []
    for what, rows, value in (("size of a message", sizes, "messages"), ("messages of a batch", batches, "frames")):
        total: dict[int, int] = {}
        for row in rows:
            total[row["bits"]] = total.get(row["bits"], 0) + row[value]
        if total:
            powers = range(min(total), max(total) + 1)
            show: Callable[[int], str] = size if rows is sizes else lambda value: f"{value:,}"
            labels = [f"<{show(1 << power)}" if power else show(0) for power in powers]
            parts.append(f"<h3>{what}</h3>" + bars(labels, [total.get(power, 0) for power in powers], what))
    return section("Sizes", *parts)


def _keys(audit: Audit) -> str:
    rows = [
        (row["channel"], text(row["key"]), f"{row['messages']:,}", f"{row['messages'] / max(1, row['keyed']):.2%}",
         f"{row['distinct_keys']:,}")
        for row in audit.tables.get("keys", ())
        if row["rank"] <= 5
    ]  # fmt: skip
    columns = ("channel:t", "key:t", "messages", "share", "different keys")
    return section("Most frequent keys", table(columns, rows)) if rows else ""


def _producers(audit: Audit) -> str:
    producers = audit.tables.get("producers", [])
    rows = [
        (
            row["channel"],
            row["producer"],
            f"{row['first_sequence']} to {row['last_sequence']}",
            f"{row['gaps']:,}",
            f"{row['missing']:,}",
        )
        for row in producers
        if row["missing"]
    ]
    if not producers:
        return ""
    if not rows:
        return section("Producers", f"<p>{len(producers):,} producers, none with a gap in its sequence.</p>")
    note = '<p class="soft">What was retained no longer, or compacted, leaves a gap too.</p>'
    return section(
        "Producers with gaps", table(("channel:t", "producer:t", "sequences", "gaps", "missing"), rows), note
    )


def _segments(audit: Audit) -> str:
    rows = [
        (row["segment"], row["state"] + ("" if row["is_sealed"] else ", live"),
         f"{row['first_sequence']} to {row['last_sequence']}", f"{row['frames'] or 0:,}",
         f"{row['messages'] or 0:,}", size(row["bytes"] or 0))
        for row in audit.tables.get("segments", ())
    ]  # fmt: skip
    columns = ("segment:t", "state:t", "sequences", "records", "messages", "size")
    return section("Segments", table(columns, rows)) if rows else ""


def _curves(
    rows: Iterable[Mapping[str, Any]],
    name_of: Callable[[Mapping[str, Any]], str],
    value: str,
    times: Sequence[int],
    *,
    scale: float = 1.0,
    carry: bool = False,
) -> list[tuple[str, list[float | None]]]:
    """The largest few as curves. Where nothing is told: as before (`carry`), else zero."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        series = found.setdefault(name_of(row), {})
        series[row["start_us"]] = series.get(row["start_us"], 0.0) + row[value] * scale
    largest = sorted(found, key=lambda name: -sum(found[name].values()))[:MOST_CURVES]
    curves: list[tuple[str, list[float | None]]] = []
    for name in largest:
        last: float | None = None if carry else 0.0
        values: list[float | None] = []
        for at in times:
            last = found[name].get(at, last if carry else 0.0)
            values.append(last)
        curves.append((name, values))
    return curves


def _histograms(latencies: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """By group, messages by the power of two of their microseconds; the busiest few."""
    found: dict[str, dict[int, int]] = {}
    for row in latencies:
        histogram = found.setdefault(f"{row['channel']} / {row['group']}", {})
        power = max(0, int(row["microseconds"]).bit_length() - 1)
        histogram[power] = histogram.get(power, 0) + row["messages"]
    largest = sorted(found, key=lambda name: -sum(found[name].values()))[:MOST_CURVES]
    return {name: found[name] for name in largest}
