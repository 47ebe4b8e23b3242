using System;
using System.Collections.Generic;
using System.Globalization;
using System.Security.Cryptography;
using System.Text;

namespace RtControl
{
    /// <summary>GET /connect: a connection that is up once its answer is there. Plain HTTP.</summary>
    internal sealed class ConnectRequest : TcpTransport
    {
        private const int MaxBytes = 16384;

        private readonly string _url;
        private readonly StringBuilder _got = new StringBuilder();
        private bool _over;

        /// <summary>Begins to connect. <paramref name="lost"/>: a server of the answer before that was silent; or null.</summary>
        public ConnectRequest(string url, RtOptions options, string lost) : base(url, HostOf(url), PortOf(url), null)
        {
            _url = url;
            Uri to = new Uri(url);
            string hint = Hint(options);
            Append(Encoding.ASCII.GetBytes("GET " + to.PathAndQuery + " HTTP/1.0\r\nHost: " + to.Authority + "\r\nAccept: application/json\r\n"
                + (hint == null ? "" : "x-tools: " + hint + "\r\n") + (lost == null ? "" : "x-lost: " + lost + "\r\n") + "\r\n"));
            Begin();
        }

        public ConnectAnswer Answer { get; private set; }

        internal override string ClosedEarly
        {
            get { return _url + " hung up"; }
        }

        public static bool IsUrl(string endpoint)
        {
            Uri to;
            return endpoint != null && endpoint.StartsWith("http://", StringComparison.Ordinal)
                && Uri.TryCreate(endpoint, UriKind.Absolute, out to) && to.Host.Length > 0 && to.UserInfo.Length == 0;
        }

        internal override void Feed(byte[] bytes, int count)
        {
            for (var i = 0; i < count; i++) _got.Append((char)bytes[i]); // ASCII is all that counts
            if (_got.Length > MaxBytes) throw new PeerException(_url + " answers too much");
        }

        internal override bool AtEnd()
        {
            return _over = true;
        }

        internal override bool Shake()
        {
            string got = _got.ToString(), retryAfter = "";
            int head = got.IndexOf("\r\n\r\n", StringComparison.Ordinal), status = 0;
            if (head < 0 && !_over) return false;
            if (head < 0 || !got.StartsWith("HTTP/1.", StringComparison.Ordinal)) throw new PeerException(_url + " is not a web server");
            int.TryParse(got.Substring(Math.Min(9, head), Math.Min(3, head - Math.Min(9, head))), NumberStyles.None, CultureInfo.InvariantCulture, out status);
            int length = -1;
            foreach (string line in got.Substring(0, head).Split('\n'))
            {
                string[] sides = line.Split(new[] { ':' }, 2);
                string name = sides[0].ToLowerInvariant();
                if (name == "retry-after") retryAfter = sides[1].Trim();
                if (name == "content-length" && !int.TryParse(sides[1].Trim(), NumberStyles.None, CultureInfo.InvariantCulture, out length)) length = -1;
            }
            string body = got.Substring(head + 4);
            if (!_over && (length < 0 || body.Length < length)) return false;
            Answer = ConnectAnswer.Read(_url, status, retryAfter, body);
            return true;
        }

        internal override List<byte[]> Take()
        {
            return null;
        }

        internal override void Put(IList<byte[]> parts)
        {
        }

        /// <summary>The same for the same tools, so that clients with them share a server.</summary>
        private static string Hint(RtOptions options)
        {
            string agent = RtOptions.Blank(options.Agent);
            if (options.Tools == null && agent == null) return null;
            byte[] bytes = MsgPackWriter.Pack(new RtMap { { "tools", options.Tools }, { "agent", agent } });
            using (SHA256 hash = SHA256.Create())
                return BitConverter.ToString(hash.ComputeHash(bytes)).Replace("-", "").ToLowerInvariant();
        }

        private static string HostOf(string url)
        {
            return new Uri(url).Host.Trim('[', ']');
        }

        private static int PortOf(string url)
        {
            return new Uri(url).Port;
        }
    }
}
