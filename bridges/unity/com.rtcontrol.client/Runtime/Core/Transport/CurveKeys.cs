using System;
using System.IO;

namespace RtControl
{
    /// <summary>Key files as `rtcontrol keys new NAME` writes them (ZeroMQ's certificate format).</summary>
    public static class CurveKeys
    {
        /// <summary>
        /// For <see cref="RtOptions.Transport"/>: CURVE with this client's `.key_secret` file and the server's `.key`
        /// file (default: `server.key` beside it). Throws WireException for files that hold no key.
        /// </summary>
        public static Func<string, IRtTransport> Use(string secretFile, string serverFile = null)
        {
            string folder = Path.GetDirectoryName(Path.GetFullPath(secretFile));
            string server = Read(serverFile ?? Path.Combine(folder, "server.key"), "public-key");
            string known = Read(secretFile, "public-key"), secret = Read(secretFile, "secret-key");
            return endpoint => new LibZmqTransport(endpoint, server, known, secret);
        }

        private static string Read(string path, string name)
        {
            if (File.Exists(path))
                foreach (string line in File.ReadAllLines(path))
                {
                    string[] sides = line.Split(new[] { '=' }, 2);
                    if (sides.Length < 2 || sides[0].Trim() != name) continue;
                    string key = sides[1].Trim().Trim('"');
                    if (key.Length == 40) return key;
                }
            // The path is told, what stands in it never.
            throw new WireException(WireException.Invalid, "keys", "no " + name + " in " + path);
        }
    }
}
