using System;
using System.Collections;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// Messages to parts and back (docs/protocol.md, sections 1, 2): the header as msgpack, then one buffer an array; or one
    /// JSON text. In a message an array's bytes are under <c>data</c>; on the wire its <c>part</c>, or <c>base64</c>.
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

        /// <summary>A message of its own, as it would arrive. Throws WireException for what the protocol does not allow, but for its size.</summary>
        internal static RtMap Copy(RtMap message)
        {
            List<byte[]> parts = Parts(message);
            for (var i = 1; i < parts.Count; i++) parts[i] = (byte[])parts[i].Clone();
            return Read(parts);
        }

        /// <summary>Throws WireException for what cannot be sent as JSON. Buffers are counted, not written: it is called in frames.</summary>
        internal static void CheckJson(RtMap message)
        {
            long buffers = 0;
            byte[] text = JsonWriter.Text(WithBuffers(message, data =>
            {
                buffers += (data.Length + 2) / 3 * 4L;
                return new KeyValuePair<string, object>(JsonReader.Base64, "");
            }));
            CheckSize(1, text.Length + buffers);
        }

        private static List<byte[]> Parts(RtMap message)
        {
            var parts = new List<byte[]> { null };
            RtMap header = WithBuffers(message, data =>
            {
                parts.Add(data);
                return new KeyValuePair<string, object>("part", parts.Count - 1);
            });
            parts[0] = MsgPackWriter.Pack(header);
            return parts;
        }

        /// <summary>The same for a transport whose messages are JSON where <paramref name="json"/> is true.</summary>
        public static List<byte[]> Encode(RtMap message, bool json)
        {
            return json ? new List<byte[]> { EncodeJson(message) } : Encode(message);
        }

        /// <summary>The message as one JSON text. Throws WireException for what the protocol does not allow.</summary>
        public static byte[] EncodeJson(RtMap message)
        {
            byte[] text = JsonWriter.Text(WithBuffers(message, data => new KeyValuePair<string, object>(JsonReader.Base64, new JsonWriter.BufferText(data))));
            CheckSize(new[] { text });
            return text;
        }

        /// <summary>The same for a transport whose messages are JSON where <paramref name="json"/> is true.</summary>
        public static RtMap Decode(IList<byte[]> parts, bool json)
        {
            if (!json) return Decode(parts);
            if (parts.Count != 1) throw new WireException(WireException.Malformed, null, "a binary message");
            return DecodeJson(parts[0]);
        }

        /// <summary>The message of a JSON text. Throws WireException for whatever is none.</summary>
        public static RtMap DecodeJson(byte[] text)
        {
            CheckSize(new[] { text });
            var header = JsonReader.Read(text) as RtMap;
            if (header == null) throw new WireException(WireException.Malformed, null, "the message is no map");
            if (header.Text("type") == "observe")
                foreach (KeyValuePair<string, RtMap> array in Arrays(header))
                    array.Value["data"] = Bytes(array.Value.Text(JsonReader.Base64), array.Key + "." + JsonReader.Base64);
            return Messages.Check(header);
        }

        /// <summary>Throws WireException for whatever is no message.</summary>
        public static RtMap Decode(IList<byte[]> parts)
        {
            if (parts.Count == 0) throw new WireException(WireException.Malformed, null, "no parts");
            CheckSize(parts);
            return Read(parts);
        }

        private static RtMap Read(IList<byte[]> parts)
        {
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

        /// <summary>The message with what stands on the wire in place of its arrays' bytes.</summary>
        private static RtMap WithBuffers(RtMap message, Func<byte[], KeyValuePair<string, object>> placed)
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
                KeyValuePair<string, object> place = placed(data);
                entry[place.Key] = place.Value;
                entries.Add(entry);
            }
            header["arrays"] = entries;
            return header;
        }

        private static byte[] Bytes(string base64, string path)
        {
            try
            {
                // The reader of the runtime skips blanks, which the protocol forbids.
                if (base64 != null && base64.IndexOfAny(new[] { ' ', '\t', '\r', '\n' }) < 0) return Convert.FromBase64String(base64);
            }
            catch (FormatException)
            {
                // told below
            }
            throw Schema.Wrong(path, "must be base64, padded, without line breaks");
        }

        private static void CheckSize(IList<byte[]> parts)
        {
            long total = 0;
            foreach (byte[] part in parts) total += part.Length;
            CheckSize(parts.Count, total);
        }

        private static void CheckSize(int parts, long total)
        {
            if (parts > RtLimits.MaxParts || total > RtLimits.MaxMessageBytes)
                throw new WireException(WireException.TooLarge, null, parts + " parts of " + total + " bytes together: "
                    + RtLimits.MaxParts + " and " + RtLimits.MaxMessageBytes + " at most");
        }
    }
}
