using System.Collections;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// Messages to parts and back: the header as msgpack, then one buffer an array (docs/protocol.md, sections 1, 2).
    /// In a message an array's bytes are under <c>data</c>; in the header its <c>part</c> stands instead.
    /// </summary>
    public static class Codec
    {
        /// <summary>Throws WireException for what the protocol does not allow.</summary>
        public static List<byte[]> Encode(RtMap message)
        {
            var parts = new List<byte[]> { null };
            RtMap header = message;
            var arrays = message.Get("arrays") as IList;
            if (arrays != null)
            {
                header = new RtMap();
                foreach (KeyValuePair<string, object> entry in message) header[entry.Key] = entry.Value;
                var entries = new List<object>();
                foreach (object one in arrays)
                {
                    var array = one as RtMap;
                    var data = array == null ? null : array.Get("data") as byte[];
                    if (data == null) throw Schema.Wrong("arrays[" + entries.Count + "]", "must be a RtMap with bytes as `data`");
                    var entry = new RtMap();
                    foreach (KeyValuePair<string, object> field in array)
                        if (field.Key != "data") entry[field.Key] = field.Value;
                    entry["part"] = parts.Count;
                    entries.Add(entry);
                    parts.Add(data);
                }
                header["arrays"] = entries;
            }
            parts[0] = MsgPackWriter.Pack(header);
            CheckSize(parts);
            return parts;
        }

        /// <summary>Throws WireException for whatever is no message.</summary>
        public static RtMap Decode(IList<byte[]> parts)
        {
            if (parts.Count == 0) throw new WireException(WireException.Malformed, null, "no parts");
            CheckSize(parts);
            var header = MsgPackReader.Unpack(parts[0]) as RtMap;
            if (header == null) throw new WireException(WireException.Malformed, null, "the header is no map");
            int used = header.Text("type") == "observe" ? Attach(header, parts) : 0;
            if (used != parts.Count - 1)
                throw new WireException(WireException.Malformed, null, "a part belongs to no array");
            return Messages.Check(header);
        }

        private static int Attach(RtMap header, IList<byte[]> parts)
        {
            if (header.Get("arrays") == null) return 0;
            List<object> arrays = header.List("arrays");
            if (arrays == null) throw Schema.Wrong("arrays", "must be a list of maps");
            var used = new HashSet<long>();
            for (int i = 0; i < arrays.Count; i++)
            {
                var entry = arrays[i] as RtMap;
                if (entry == null) throw Schema.Wrong("arrays", "must be a list of maps");
                string path = "arrays[" + i + "].part";
                object whole = Schema.AnyWhole(entry.Get("part"), path);
                if (!(whole is long) || (long)whole < 1 || (long)whole >= parts.Count || !used.Add((long)whole))
                    throw Schema.Wrong(path, "is no part, or used twice");
                entry["data"] = parts[(int)(long)whole];
            }
            return used.Count;
        }

        private static void CheckSize(IList<byte[]> parts)
        {
            long total = 0;
            foreach (byte[] part in parts) total += part.Length;
            if (parts.Count > RtLimits.MaxParts || total > RtLimits.MaxMessageBytes)
                throw new WireException(WireException.TooLarge, null, parts.Count + " parts of " + total + " bytes together: "
                    + RtLimits.MaxParts + " and " + RtLimits.MaxMessageBytes + " at most");
        }
    }
}
