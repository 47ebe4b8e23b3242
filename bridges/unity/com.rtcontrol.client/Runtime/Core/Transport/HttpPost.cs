using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Net;
using System.Net.Sockets;
using System.Text;

namespace RtControl
{
    /// <summary>One HTTP request with a body of JSON, and its whole answer. Blocks: for a thread of its own.</summary>
    internal sealed class HttpPost
    {
        private const int MaxAnswerBytes = 65536;
        private const int WholeMs = 12000; // the server answers within 10 s, or never

        private readonly System.Diagnostics.Stopwatch _watch = System.Diagnostics.Stopwatch.StartNew();
        private readonly Dictionary<string, string> _headers = new Dictionary<string, string>(StringComparer.OrdinalIgnoreCase);

        /// <summary>Throws PeerException for what is no answer, IOException and SocketException where there is none.</summary>
        public HttpPost(WsAddress address, string path, byte[] body)
        {
            using (TcpClient connection = Connected(address))
            using (NetworkStream stream = connection.GetStream())
            {
                byte[] head = Encoding.ASCII.GetBytes("POST " + path + " HTTP/1.1\r\nHost: " + address.Authority
                    + "\r\nContent-Type: application/json\r\nContent-Length: " + body.Length.ToString(CultureInfo.InvariantCulture)
                    + "\r\nAccept: application/json\r\nConnection: close\r\n\r\n");
                stream.WriteTimeout = WholeMs;
                stream.Write(head, 0, head.Length);
                stream.Write(body, 0, body.Length);
                Read(stream);
            }
        }

        public int Status { get; private set; }
        public byte[] Body { get; private set; }

        /// <summary>A header of the answer, or null.</summary>
        public string Header(string name)
        {
            string value;
            return _headers.TryGetValue(name, out value) ? value : null;
        }

        private TcpClient Connected(WsAddress address)
        {
            IPAddress given;
            // The resolver throws for 0.0.0.0, which is an address all the same.
            IPAddress[] found = IPAddress.TryParse(address.Host, out given) ? new[] { given } : Dns.GetHostAddresses(address.Host);
            Array.Sort(found, (a, b) => a.AddressFamily.CompareTo(b.AddressFamily));
            foreach (IPAddress one in found)
            {
                var client = new TcpClient(one.AddressFamily);
                IAsyncResult connecting = client.BeginConnect(one, address.Port, null, null);
                bool done = connecting.AsyncWaitHandle.WaitOne(Math.Min(LeftMs(), WholeMs / 2));
                if (done && client.Connected)
                {
                    client.EndConnect(connecting);
                    return client;
                }
                client.Close();
            }
            throw new PeerException("nobody answers at " + address.Authority);
        }

        private void Read(NetworkStream stream)
        {
            var all = new MemoryStream();
            var chunk = new byte[4096];
            int bodyAt = -1;
            while (bodyAt < 0 || !Whole(all, bodyAt))
            {
                stream.ReadTimeout = LeftMs();
                int count = stream.Read(chunk, 0, chunk.Length);
                if (count == 0) break;
                all.Write(chunk, 0, count);
                if (all.Length > MaxAnswerBytes) throw new PeerException("the answer is too long");
                if (bodyAt < 0) bodyAt = ReadHead(all);
            }
            if (bodyAt < 0 || Body == null && (Chunked || Header("Content-Length") != null)) throw new PeerException("the answer ends in the middle");
            if (Body == null) Body = Cut(all.ToArray(), bodyAt, (int)all.Length - bodyAt);
        }

        private bool Chunked
        {
            get { return (Header("Transfer-Encoding") ?? "").IndexOf("chunked", StringComparison.OrdinalIgnoreCase) >= 0; }
        }

        /// <summary>Where the body begins; -1 where the head is not whole yet.</summary>
        private int ReadHead(MemoryStream all)
        {
            string text = Encoding.ASCII.GetString(all.GetBuffer(), 0, (int)all.Length);
            int end = text.IndexOf("\r\n\r\n", StringComparison.Ordinal);
            if (end < 0) return -1;
            string[] lines = text.Substring(0, end).Split(new[] { "\r\n" }, StringSplitOptions.None);
            string[] words = lines[0].Split(' ');
            int status;
            if (words.Length < 2 || !words[0].StartsWith("HTTP/1.", StringComparison.Ordinal)
                || !int.TryParse(words[1], NumberStyles.None, CultureInfo.InvariantCulture, out status))
                throw new PeerException("the peer speaks no HTTP");
            Status = status;
            for (var i = 1; i < lines.Length; i++)
            {
                int colon = lines[i].IndexOf(':');
                if (colon > 0) _headers[lines[i].Substring(0, colon)] = lines[i].Substring(colon + 1).Trim();
            }
            return end + 4;
        }

        private bool Whole(MemoryStream all, int at)
        {
            if (Chunked) return Unchunked(all.ToArray(), at);
            long length;
            if (!long.TryParse(Header("Content-Length"), NumberStyles.None, CultureInfo.InvariantCulture, out length)) return false;
            if (length > MaxAnswerBytes) throw new PeerException("the answer is too long");
            if (all.Length < at + length) return false;
            Body = Cut(all.ToArray(), at, (int)length);
            return true;
        }

        private bool Unchunked(byte[] all, int at)
        {
            var body = new MemoryStream();
            while (true)
            {
                int end = Array.IndexOf(all, (byte)'\n', at);
                if (end < 0) return false;
                string line = Encoding.ASCII.GetString(all, at, end - at).Split(';')[0].Trim();
                int size;
                if (!int.TryParse(line, NumberStyles.AllowHexSpecifier, CultureInfo.InvariantCulture, out size) || size < 0 || size > MaxAnswerBytes)
                    throw new PeerException("the answer's parts are none");
                if (size == 0) break;
                if (end + 1 + size + 2 > all.Length) return false;
                body.Write(all, end + 1, size);
                at = end + 1 + size + 2;
            }
            Body = body.ToArray();
            return true;
        }

        private int LeftMs()
        {
            long left = WholeMs - _watch.ElapsedMilliseconds;
            if (left <= 0) throw new PeerException("no answer in time");
            return (int)left;
        }

        private static byte[] Cut(byte[] all, int at, int length)
        {
            var part = new byte[length];
            Buffer.BlockCopy(all, at, part, 0, length);
            return part;
        }
    }
}
