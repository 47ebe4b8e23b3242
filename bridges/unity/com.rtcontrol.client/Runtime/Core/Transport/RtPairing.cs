using System;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Net.Sockets;
using System.Text;
using System.Threading;

namespace RtControl
{
    /// <summary>
    /// Exchanges the six digits that a server shows (`rtcontrol serve --pair`) for an access token of this device's own. Begins
    /// when it is made, in a thread of its own; look at <see cref="Done"/> each frame. Keep the token as a secret: it stays
    /// valid until it is revoked. One try, never repeated by itself: a code may be used only once.
    /// </summary>
    public sealed class RtPairing
    {
        private const int LongestName = 64;
        private const string MayBeUsed = "The code may have been used: look at the server's terminal for another one.";

        private volatile bool _done;

        /// <summary>
        /// <paramref name="endpoint"/>: <c>ws://HOST:PORT/ws</c> of the session; of several the first. <paramref name="typed"/>:
        /// what a person typed; blanks and `-` in it mean nothing; null or empty: only ask the server to show a code.
        /// <paramref name="name"/>: what people read in the list of devices. Throws WireException for a code that is none, and
        /// an endpoint that does not pair; NotSupportedException in a WebGL player.
        /// </summary>
        public RtPairing(string endpoint, string typed, string name = null)
        {
            RefuseWebGl();
            string first = (endpoint ?? "").Split(',')[0].Trim();
            if (!WsAddress.Is(first)) throw new WireException(WireException.Invalid, "endpoint", "devices are paired over ws://HOST:PORT/ws, the address of --http");
            var address = new WsAddress(first);
            WsTransport.RefuseSecure(address);
            var request = new RtMap();
            bool asks = string.IsNullOrEmpty(typed);
            if (!asks) request["code"] = Digits(typed);
            request.With("name", Named(name));
            byte[] body = JsonWriter.Text(request);
            new Thread(() => Run(address, body, asks)) { IsBackground = true, Name = "rtcontrol pairing" }.Start();
        }

        /// <summary>Whether there is an answer, or there will be none. All else is to be read only then.</summary>
        public bool Done
        {
            get { return _done; }
        }

        /// <summary>The access token, for <see cref="RtOptions.Token"/>; null: <see cref="Trouble"/> says why there is none.</summary>
        public string Token { get; private set; }

        /// <summary>This device's name in the server's list.</summary>
        public string Name { get; private set; }

        /// <summary>What happened and what to do, for people; null where there is a token, or a code is shown now.</summary>
        public string Trouble { get; private set; }

        /// <summary>The server's word for it: wrong_code, locked, full, public, ...; null where it told none.</summary>
        public string Code { get; private set; }

        /// <summary>Whether the server shows a code now, for a person to type.</summary>
        public bool Shown { get; private set; }

        /// <summary>Whether another try may work, with another code: not where this server does not pair at all.</summary>
        public bool MayAskAgain { get; private set; }

        /// <summary>So many seconds nobody can pair; 0: at once.</summary>
        public int RetryAfterSeconds { get; private set; }

        /// <summary>The six digits of what a person typed. Throws WireException where they are none.</summary>
        public static string Digits(string typed)
        {
            var digits = new StringBuilder();
            bool fits = true;
            foreach (char c in typed ?? "")
            {
                if (c == '-' || char.IsWhiteSpace(c)) continue;
                fits = fits && c >= '0' && c <= '9';
                digits.Append(c);
            }
            if (!fits || digits.Length != 6) throw new WireException(WireException.Invalid, "code", "type the six digits that the server shows in its terminal");
            return digits.ToString();
        }

        private void Run(WsAddress address, byte[] body, bool asks)
        {
            try
            {
                Hear(new HttpPost(address, "/pair", body), asks);
            }
            catch (Exception error) when (error is PeerException || error is IOException || error is SocketException || error is ObjectDisposedException)
            {
                string what = error is PeerException ? error.Message : "nobody answers at " + address.Authority + " (" + error.Message + ")";
                Trouble = what + ". " + MayBeUsed;
                MayAskAgain = true;
            }
            catch (Exception error)
            {
                // In a thread of its own nobody else would catch it, and the whole game would end.
                Trouble = "The client failed (" + error.GetType().Name + ": " + error.Message + "). Report it. " + MayBeUsed;
                MayAskAgain = true;
            }
            finally
            {
                _done = true;
            }
        }

        private void Hear(HttpPost answer, bool asks)
        {
            RtMap told = Told(answer.Body);
            Code = told.Text("code");
            if (answer.Status == 200)
            {
                Token = Checked(told.Text("token"));
                Name = told.Text("name");
                return;
            }
            int seconds;
            if (int.TryParse(answer.Header("Retry-After"), NumberStyles.None, CultureInfo.InvariantCulture, out seconds)) RetryAfterSeconds = seconds;
            Shown = asks && answer.Status == 403 && Code == "code";
            MayAskAgain = Shown || answer.Status == 403 && (Code == "code" || Code == "wrong_code") || answer.Status == 429 || answer.Status == 503;
            if (Shown) return;
            if (answer.Status == 404 || answer.Status == 405) Trouble = "This server does not pair. Start it with --pair, or type its access token.";
            else Trouble = told.Text("error") ?? "The server answers HTTP " + answer.Status.ToString(CultureInfo.InvariantCulture) + ". Is it rtcontrol's --http address?";
        }

        private static RtMap Told(byte[] body)
        {
            try
            {
                return JsonReader.Read(body) as RtMap ?? new RtMap();
            }
            catch (WireException)
            {
                return new RtMap();
            }
        }

        private static string Checked(string token)
        {
            try
            {
                WsHandshake.CheckToken(token);
            }
            catch (WireException)
            {
                token = null;
            }
            if (token == null || token.Length < 16 || token.Length > 256) throw new PeerException("the answer holds no access token");
            return token;
        }

        private static string Named(string name)
        {
            var kept = new StringBuilder();
            foreach (char c in (name ?? "").Trim())
                if (!char.IsControl(c) && !char.IsSurrogate(c) && kept.Length < LongestName) kept.Append(c);
            return kept.Length == 0 ? null : kept.ToString();
        }

        private static void RefuseWebGl()
        {
#if UNITY_WEBGL && !UNITY_EDITOR
            throw new NotSupportedException("WebGL has no sockets: let the page pair (its JavaScript client has pair(url, code)), and set Token.");
#endif
        }
    }
}
