// The message as message.py packs it: length of the header, header, arrays.

const KINDS = { float64: Float64Array, float32: Float32Array, int32: Int32Array };
const ALIGNMENT = 8;

export function unpack(bytes) {
  const buffer = bytes.slice().buffer; // a copy of its own begins at an aligned place
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / ALIGNMENT) * ALIGNMENT;
  const arrays = {};
  for (const [name, [kind, offset, count]] of Object.entries(header.arrays)) {
    arrays[name] = new KINDS[kind](buffer, start + offset, count);
  }
  return { header, arrays };
}
