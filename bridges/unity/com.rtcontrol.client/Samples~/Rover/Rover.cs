using System.Globalization;
using RtControl;
using RtControl.Unity;
using UnityEngine;

namespace RtControl.Samples
{
    public enum Direction
    {
        Left,
        Right,
    }

    /// <summary>A cube that is to reach a sphere: three tools and one observation, all that a client needs.</summary>
    public sealed class Rover : MonoBehaviour, IRtObserver
    {
        public Transform target;

        private float _speed;
        private float _turn;

        [RtTool("Drive at this speed, in metres a second.")]
        public void Drive([RtRange(0, 5)] int speed)
        {
            _speed = speed;
        }

        [RtTool("Turn while driving, in degrees a second.")]
        public void Turn(Direction direction, [RtRange(0, 90, 15)] int rate = 45)
        {
            _turn = direction == Direction.Left ? -rate : rate;
        }

        [RtTool("Stand still."), RtSafe]
        public void Stop()
        {
            _speed = _turn = 0f;
        }

        public string Observe()
        {
            Vector3 to = transform.InverseTransformPoint(target.position);
            float angle = Mathf.Atan2(to.x, to.z) * Mathf.Rad2Deg;
            // Invariant: a decimal comma of the player's language is nothing that the model was shown.
            return string.Format(CultureInfo.InvariantCulture, "target distance {0:0.0} angle {1:0} speed {2:0.0}", to.magnitude, angle, _speed);
        }

        private void Update()
        {
            transform.Rotate(0f, _turn * Time.deltaTime, 0f);
            transform.Translate(0f, 0f, _speed * Time.deltaTime);
        }
    }
}
