"""Lines of logs, code, tables and catalogues without personal data; a slot in braces is drawn at random."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator

LINES = r"""
I{d2}{d2} {time}.{d6} {d5} server.cc:{d3}] Accepted connection {d6} from pool
E{d2}{d2} {time}.{d6}   {d4} device_queue.cpp:{d3}] Check failed: status == 0 ({d3} vs. 0)
W20{d2}{d2}{d2} {time}.{d6} {d6} rpc.cc:{d2}] slow call {d8} took {d4} ms
{month} {day} {time} web-{d2} sshd[{d5}]: Connection closed by 10.0.{d2}.{d2} port {d5}
<{d2}>{month} {day} {time} host{d2} kernel: [{d5}.{d6}] usb 1-{d1}: new high-speed device number {d2}
10.{d2}.{d2}.{d2} - - [{day}/{month}/2024:{time} +0000] "GET /items/{d8} HTTP/1.1" 200 {d5} "-" "curl/8.{d1}"
127.0.0.1 - admin [{day}/{month}/2024:{time} +0200] "POST /v1/orders?id={d9} HTTP/2" 201 {d4}
{date} {time},{d3} INFO  [main-{d1}] o.a.k.c.Metadata - Cluster ID: {word}{d4}
{date}T{time}.{d6}Z DEBUG worker={d5} job={d9} retry={d1} elapsed={d4}ms
[{date} {time},{d3}] {{{word}.py:{d3}}} INFO - Marking task as SUCCESS. run_id=manual__{date}T{time}
{date} {time}.{d3}  {d4}  {d4} I ActivityManager: Start proc {d5}:com.{word}.app/u0a{d3}
{d2}{d2}{d2} {d2}{d2}{d2} {d2} INFO dfs.DataNode: Receiving block blk_{d18} size {d8}
[{d5}.{d6}] EXT4-fs (sda{d1}): mounted filesystem with ordered data mode
{time}.{d3} [http-nio-8080-exec-{d1}] WARN  c.e.{word}.Filter - request {d9} rejected
level=info ts={epoch}.{d3} caller=main.go:{d3} msg="listening" port={d5}
ts={epoch}{d3} pid={d5} tid={d6} call stack depth {d3}
MATCH (n) WHERE id(n) = {d9} RETURN n
MATCH (a:Item {{id: {d9}}})-[:PART_OF]->(b) RETURN b.id LIMIT {d2}
SELECT * FROM orders WHERE id = {d9} AND total > {d3}.{d2};
INSERT INTO events VALUES ({d8}, '{word}', {d10}, {d2});
UPDATE stock SET qty = {d3} WHERE sku = '{d4}-{d4}-{d3}';
DELETE FROM sessions WHERE created < {epoch};
id: {d9}
id: {d8}, parent: {d8}
"id": {d10},
{{"order_id": "{d10}", "user_id": {d9}, "ts": {epoch}{d3}}}
call_id: call_{d10}
request_id={d12} span_id={hex16}
tracking number {d12}
Order #{d10} has shipped
Order no. {d3}-{d7}-{d7}
Invoice {d4}/{d6} is due
ticket {d7} was closed
case {d8} reopened
EAN {ean}
EAN-13: {ean}
GTIN {ean}, pack of {d2}
{ean}
barcode {ean} not found
ISBN 978-{d1}-{d2}-{d6}-{d1}
ISBN {d1}-{d3}-{d5}-{d1}
ISSN {d4}-{d4}
UPC {d12}
Part No. {d3}-{d4}-{d2}
P/N {d2}{up3}{d5}-{d2}
part number {d3}.{d3}.{d2}
Article {d3}.{d3}.{d2} (white)
SKU {up3}-{d6}
Artikelnummer {d3}.{d3}.{d2}
Bestellnummer {d10}
Rechnungsnr. {d4}-{d6}
Serial number {d3} {d4} {d3}
S/N {up3}{d7}
IMEI {d15}
model {d4}-{d3}-{d2}
FRU {d2}{up1}{d4}
commit {sha}
{hex7} Merge pull request #{d5} from {word}/{word}
index {hex7}..{hex7} 100644
@@ -{d3},{d1} +{d3},{d1} @@ def {word}(self):
 {d2} files changed, {d4} insertions(+), {d4} deletions(-)
* {hex7} ({date}) bump {word} to {d1}.{d2}.{d1}
remote: Counting objects: 100% ({d5}/{d5}), done.
Traceback (most recent call last):
  File "/usr/lib/python3.11/{word}/{word}.py", line {d4}, in {word}
ValueError: invalid literal for int() with base 10: '{d8}x'
KeyError: {d9}
    at com.{word}.Main.run(Main.java:{d3})
0x{hex16} in {word} () from /lib/x86_64-linux-gnu/libc.so.6
Segmentation fault at address 0x{hex8} rip {hex16}
goroutine {d5} [running]:
panic: runtime error: index out of range [{d8}] with length {d7}
{d4},{d4},{d4}.{d2},{date},{word}
{d8};{d2},{d2};{d3};{word};{date}
{d6}\t{d6}\t{d3}.{d4}\t-{d2}.{d4}
{d2} {d2} {d2} {d2} {d2} {d2}
{d3} {d3} {d3} {d3} {d3} {d3} {d3} {d3} {d3}
{d1}.{d6} {d1}.{d6} {d1}.{d6}
v{d1}.{d2}.{d1}-rc{d1}+build.{d6}
version 10.0.{d5}.{d4}
{word}=={d1}.{d2}.{d2}
Chrome/1{d2}.0.{d4}.{d3} Safari/537.36
Ubuntu 22.04.{d1} LTS (GNU/Linux 5.15.0-{d3}-generic x86_64)
linux-image-{d1}.{d2}.{d1}-{d3}-generic
Driver Version: {d3}.{d3}.{d2}  CUDA Version: 12.{d1}
lat {d2}.{d6}, lon -{d2}.{d6}
{d2}.{d5}° N, {d2}.{d5}° W
POINT({d2}.{d6} {d2}.{d6})
"coordinates": [-{d2}.{d7}, {d2}.{d7}]
GPS {d2} {d2}.{d3} N {d3} {d2}.{d3} E
x = {d3}.{d4} * 10^{d1} + {d8}
\sum_{{i=1}}^{{{d3}}} i^2 = {d7}
{d4} + {d5} = {d5}
{d3} * {d3} - {d4} / {d2} = {d6}
pi is about 3.{d10}
The numbers {d3}, {d3} and {d4} are prime.
f({d2}) {d3}-{d4} = {d5}
sha256:{sha}{hex16}
md5 {hex16}{hex16}
etag "{hex8}-{hex8}"
uuid {hex8}-{hex4}-4{hex3}-a{hex3}-{hex12}
{epoch}
{epoch}{d3}
20{d2}{d2}{d2}{d2}{d2}{d2}{d2}
{date} {time}
{date}T{time}+02:00
expires at {epoch} ({day} {month} 2025 {time} GMT)
from {date} to {date}
{day}.{day}.2023 {time}
MAC address table: {d4} entries, aging time {d3}
$ {d1},{d3},{d3}.{d2}
EUR {d1}.{d3}.{d3},{d2}
Price: {d3} {d3} {d3} JPY
revenue of {d3} {d3} {d3} in 2023
population {d2} {d3} {d3}
{d10} bytes ({d2}.{d1} GB) copied, {d2}.{d4} s
total {d8} used {d8} free {d7}
MemTotal:       {d8} kB
r--r--r-- 1 root root {d9} {month} {day} {d2}:{d2} {word}.tar.gz
PID {d6} CPU {d2}.{d1}% MEM {d7}
tcp 0 0 0.0.0.0:{d5} 0.0.0.0:* LISTEN {d6}/nginx
doi:10.{d4}/{word}.20{d2}.{d8}
arXiv:{d4}.{d5}
RFC {d4}, section {d1}.{d1}.{d1}
J. Phys. {d2} (19{d2}) {d4}-{d4}
US patent {d1},{d3},{d3}
CVE-20{d2}-{d5}
PMID: {d8}
chr{d1}:{d8}-{d8}
rs{d8} A/G 0.{d4}
{d2} {hex2} {hex2} {hex2} {hex2} {hex2} {hex2} {hex2}
{hex8}: {hex4} {hex4} {hex4} {hex4} {hex4}
MOV R{d1}, #0x{hex4} ; {d4}
const TIMEOUT_MS = {d7};
return {d3} * 1000 + {d6}
#define MAGIC {d9}
for i in range({d8}):
assert total == {d10}
timeout: {d5}, retries: {d1}, max_bytes: {d9}
seed={d9} step={d7} loss={d1}.{d6}
Epoch {d2}/{d3} - loss: 0.{d6} - val_loss: 0.{d6}
iter {d7} {d2}:{d2}:{d2} {d3}.{d3} it/s
phone_model_id: {d8}
PhoneStatusBar: mask=1 oldVal={d8} newVal={d8}
sendSms() returned {d9}
callback {d9} registered
system call {d8} interrupted
Recall at {d4}: 0.{d4}, calls: {d7}
mobile app build {d8}
cell B{d2} = {d2}.{d6}
telemetry batch {d10}
contact form id {d8}
Text length {d7}, tokens {d6}
订单号：{d12}
商品编号 {d8}
注文番号 {d3}-{d7}
заказ № {d8}
артикул {d7}
Numéro de commande {d9}
pedido {d9} enviado
Référence {d4}-{d4}
FACT {d4} {d6}
flight {up2}{d4} gate {up1}{d2}
tail number N{d3}{up2}
lot {d6}, best before {date}
weights: {d3}x{d3}x{d3}
resolution 1920x1080 @ {d2} fps, bitrate {d7}
""".strip("\n").split("\n")
"""Kinds of lines: glog, syslog, nginx, Cypher, SQL, EAN, part numbers, git, tracebacks, CSV, versions …"""

_SLOT = re.compile(r"\{\{|\}\}|\{([a-z]+)(\d*)\}")
_WORDS = "alpha router parser widget cache sensor ledger planner socket buffer metrics loader".split()
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def lines(seed: int, repeats: int) -> Iterator[str]:
    """Each kind of line `repeats` times."""
    draw = random.Random(seed)
    for _ in range(repeats):
        for line in LINES:
            yield _SLOT.sub(lambda match: _filled(draw, match), line)


def _filled(draw: random.Random, match: re.Match[str]) -> str:
    name, size = match[1], int(match[2] or 0)
    if name is None:
        return match[0][0]
    if name in _ALPHABETS:
        return "".join(draw.choices(_ALPHABETS[name], k=size))
    return _DRAWN[name](draw)


def _ean(draw: random.Random) -> str:
    body = draw.choice(("40", "50", "59", "69", "73", "978")) + "".join(draw.choices(string.digits, k=10))
    digits = [int(char) for char in body[:12]]
    return body[:12] + str(-(sum(digits[::2]) + 3 * sum(digits[1::2])) % 10)


_ALPHABETS = {"d": string.digits, "hex": "0123456789abcdef", "up": string.ascii_uppercase}
_DRAWN = {
    "ean": _ean,
    "word": lambda draw: draw.choice(_WORDS),
    "month": lambda draw: draw.choice(_MONTHS),
    "day": lambda draw: f"{draw.randint(1, 28):02}",
    "time": lambda draw: f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}",
    "date": lambda draw: f"20{draw.randint(10, 26)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
    "epoch": lambda draw: str(draw.randint(1_500_000_000, 1_799_999_999)),
    "sha": lambda draw: f"{draw.getrandbits(160):040x}",
}
