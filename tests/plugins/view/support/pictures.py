"""Pictures of a browser's page in at most 256 colours, for the documentation."""

from __future__ import annotations

import base64
import struct
import zlib

from selenium import webdriver

COLOURS = 256
_REDUCE = """
const [done, png, most] = [arguments[2], arguments[0], arguments[1]];
const image = new Image();
image.onload = () => {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const draw = canvas.getContext("2d");
  draw.drawImage(image, 0, 0);
  const pixels = new Uint32Array(draw.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, most).map(([pixel]) => pixel);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const known = new Map(palette.map((pixel, at) => [pixel, at]));
  const colours = palette.map(parts);
  const nearest = (pixel) => {
    const [r, g, b] = parts(pixel);
    let [found, least] = [0, Infinity];
    colours.forEach(([x, y, z], at) => {
      const apart = (x - r) ** 2 + (y - g) ** 2 + (z - b) ** 2;
      if (apart < least) [found, least] = [at, apart];
    });
    return found;
  };
  const indexes = new Uint8Array(pixels.length);
  pixels.forEach((pixel, at) => {
    if (!known.has(pixel)) known.set(pixel, nearest(pixel));
    indexes[at] = known.get(pixel);
  });
  let text = "";
  for (let at = 0; at < indexes.length; at += 32768) {
    text += String.fromCharCode(...indexes.subarray(at, at + 32768));
  }
  done([image.width, image.height, colours.flat(), btoa(text)]);
};
image.src = "data:image/png;base64," + png;
"""


def palette_png(driver: webdriver.Chrome) -> bytes:
    """What the browser shows, as a PNG with a palette: the most frequent colours."""
    png = driver.get_screenshot_as_base64()
    page = driver.current_window_handle
    driver.switch_to.new_window("tab")  # the policy of our pages lets no image in
    try:
        width, height, colours, packed = driver.execute_async_script(_REDUCE, png, COLOURS)
    finally:
        driver.close()
        driver.switch_to.window(page)
    indexes = base64.b64decode(packed)
    rows = b"".join(b"\0" + indexes[at : at + width] for at in range(0, len(indexes), width))
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", bytes(colours)), (b"IDAT", zlib.compress(rows, 9))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in (*chunks, (b"IEND", b"")))


def _chunk(name: bytes, content: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check
