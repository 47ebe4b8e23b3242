using System;
using System.Collections;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// Messages to parts and back (docs/protocol.md, sections 1, 2): the header as msgpack, then one buffer an array. In a
    /// message an array's bytes are under <c>data</c>; on the wire it has its <c>part</c>.
    /// </summary>
    public static class Codec
    {
        // The widest that the server may set in their places: a message that fits with them fits whatever they are.
        internal static readonly string WidestToken = new string('-', 128);
        internal const long WidestCount = (1L << 53) - 1;

        /// <summary>Throws WireException for what the protocol does not allow.</summary>
        public static List<byte[]> Encode(RtMap message)
        {
            List<byte[]> parts = Parts(message);
            CheckSize(parts);
            return parts;
        }

        /// <summary>A copy of the message, as it would arrive. Throws WireException for what the protocol does not allow.</summary>
        internal static RtMap Copy(RtMap message)
        {
            List<byte[]> parts = Encode(message);
            for (var i = 1; i < parts.Count; i++) parts[i] = (byte[])parts[i].Clone();
            return Decode(parts);
        }

        private static List<byte[]> Parts(RtMap message)
        {
            var parts = new List<byte[]> { null };
            parts[0] = MsgPackWriter.Pack(WithBuffers(message, parts));
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
            var used = new HashSet<long>();
            foreach (KeyValuePair<string, RtMap> array in Arrays(header))
            {
                string path = array.Key + ".part";
                object whole = Schema.AnyWhole(array.Value.Get("part"), path);
                if (!(whole is long) || (long)whole < 1 || (long)whole >= parts.Count || !used.Add((long)whole))
                    throw Schema.Wrong(path, "is no part, or used twice");
                array.Value["data"] = parts[(int)(long)whole];
            }
            return used.Count;
        }

        /// <summary>A header's arrays, by their paths.</summary>
        private static List<KeyValuePair<string, RtMap>> Arrays(RtMap header)
        {
            var found = new List<KeyValuePair<string, RtMap>>();
            if (header.Get("arrays") == null) return found;
            List<object> arrays = header.List("arrays");
            if (arrays == null) throw Schema.Wrong("arrays", "must be a list of maps");
            foreach (object one in arrays)
            {
                var array = one as RtMap;
                if (array == null) throw Schema.Wrong("arrays", "must be a list of maps");
                found.Add(new KeyValuePair<string, RtMap>("arrays[" + found.Count + "]", array));
            }
            return found;
        }

        /// <summary>The message as its header; its arrays' bytes are appended to the parts.</summary>
        private static RtMap WithBuffers(RtMap message, List<byte[]> parts)
        {
            var arrays = message.Get("arrays") as IList;
            if (arrays == null) return message;
            var header = new RtMap();
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
                parts.Add(data);
                entry["part"] = parts.Count - 1;
                entries.Add(entry);
            }
            header["arrays"] = entries;
            return header;
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
