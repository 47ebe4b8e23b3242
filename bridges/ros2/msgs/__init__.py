"""ROS 2 messages as cyclonedds types. Written by rtcontrol.bridges.ros2.generate: change that, not this."""

from typing import Any

from rtcontrol.bridges.ros2.msgs import (
    ackermann_msgs,
    builtin_interfaces,
    diagnostic_msgs,
    geometry_msgs,
    nav_msgs,
    sensor_msgs,
    std_msgs,
    trajectory_msgs,
)

# Full name -> class and RIHS01 type hash (the same in Humble, Jazzy and later).
MESSAGES: dict[str, tuple[type[Any], str]] = {
    "builtin_interfaces/msg/Time": (
        builtin_interfaces.Time,
        "RIHS01_b106235e25a4c5ed35098aa0a61a3ee9c9b18d197f398b0e4206cea9acf9c197",
    ),
    "builtin_interfaces/msg/Duration": (
        builtin_interfaces.Duration,
        "RIHS01_e8d009f659816f758b75334ee1a9ca5b5c0b859843261f14c7f937349599d93b",
    ),
    "std_msgs/msg/Header": (
        std_msgs.Header,
        "RIHS01_f49fb3ae2cf070f793645ff749683ac6b06203e41c891e17701b1cb597ce6a01",
    ),
    "std_msgs/msg/Empty": (
        std_msgs.Empty,
        "RIHS01_20b625256f32d5dbc0d04fee44f43c41e51c70d3502f84b4a08e7a9c26a96312",
    ),
    "std_msgs/msg/String": (
        std_msgs.String,
        "RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18",
    ),
    "std_msgs/msg/Bool": (
        std_msgs.Bool,
        "RIHS01_feb91e995ff9ebd09c0cb3d2aed18b11077585839fb5db80193b62d74528f6c9",
    ),
    "std_msgs/msg/UInt8": (
        std_msgs.UInt8,
        "RIHS01_6138bd83d8c3569cb80a667db03cfc1629f529fee79d944c39c34e352e72f010",
    ),
    "std_msgs/msg/Int32": (
        std_msgs.Int32,
        "RIHS01_b6578ded3c58c626cfe8d1a6fb6e04f706f97e9f03d2727c9ff4e74b1cef0deb",
    ),
    "std_msgs/msg/Int64": (
        std_msgs.Int64,
        "RIHS01_8cd1048c2f186b6bd9a92472dc1ce51723c0833a221e2b7aecfff111774f4b49",
    ),
    "std_msgs/msg/Float32": (
        std_msgs.Float32,
        "RIHS01_7170d3d8f841f7be3172ce5f4f59f3a4d7f63b0447e8b33327601ad64d83d6e2",
    ),
    "std_msgs/msg/Float64": (
        std_msgs.Float64,
        "RIHS01_705ba9c3d1a09df43737eb67095534de36fd426c0587779bda2bc51fe790182a",
    ),
    "std_msgs/msg/MultiArrayDimension": (
        std_msgs.MultiArrayDimension,
        "RIHS01_5e773a60a4c7fc8a54985f307c7837aa2994252a126c301957a24e31282c9cbe",
    ),
    "std_msgs/msg/MultiArrayLayout": (
        std_msgs.MultiArrayLayout,
        "RIHS01_4c66e6f78e740ac103a94cf63259f968e48c617e7699e829b63c21a5cb50dac6",
    ),
    "std_msgs/msg/Float32MultiArray": (
        std_msgs.Float32MultiArray,
        "RIHS01_0599f6f85b4bfca379873a0b4375a0aca022156bd2d7021275d116ed1fa8bfe0",
    ),
    "std_msgs/msg/Float64MultiArray": (
        std_msgs.Float64MultiArray,
        "RIHS01_1025ddc6b9552d191f89ef1a8d2f60f3d373e28b283d8891ddcc974e8c55397f",
    ),
    "geometry_msgs/msg/Vector3": (
        geometry_msgs.Vector3,
        "RIHS01_cc12fe83e4c02719f1ce8070bfd14aecd40f75a96696a67a2a1f37f7dbb0765d",
    ),
    "geometry_msgs/msg/Vector3Stamped": (
        geometry_msgs.Vector3Stamped,
        "RIHS01_d4829622288cbb443886e7ea94ea5671a3b1be6bab4ad04224432a65f7d7887a",
    ),
    "geometry_msgs/msg/Point": (
        geometry_msgs.Point,
        "RIHS01_6963084842a9b04494d6b2941d11444708d892da2f4b09843b9c43f42a7f6881",
    ),
    "geometry_msgs/msg/PointStamped": (
        geometry_msgs.PointStamped,
        "RIHS01_4c0296af86e01e562e9e0405d138a01537247580076c58ea38d7923ac1045897",
    ),
    "geometry_msgs/msg/Quaternion": (
        geometry_msgs.Quaternion,
        "RIHS01_8a765f66778c8ff7c8ab94afcc590a2ed5325a1d9a076ffff38fbce36f458684",
    ),
    "geometry_msgs/msg/Pose": (
        geometry_msgs.Pose,
        "RIHS01_d501954e9476cea2996984e812054b68026ae0bfae789d9a10b23daf35cc90fa",
    ),
    "geometry_msgs/msg/PoseStamped": (
        geometry_msgs.PoseStamped,
        "RIHS01_10f3786d7d40fd2b54367835614bff85d4ad3b5dab62bf8bca0cc232d73b4cd8",
    ),
    "geometry_msgs/msg/PoseWithCovariance": (
        geometry_msgs.PoseWithCovariance,
        "RIHS01_9a7c0fd234b7f45c6098745ecccd773ca1085670e64107135397aee31c02e1bb",
    ),
    "geometry_msgs/msg/PoseWithCovarianceStamped": (
        geometry_msgs.PoseWithCovarianceStamped,
        "RIHS01_26432f9803e43727d3c8f668d1fdb3c630f548af631e2f4e31382371bfea3b6e",
    ),
    "geometry_msgs/msg/Twist": (
        geometry_msgs.Twist,
        "RIHS01_9c45bf16fe0983d80e3cfe750d6835843d265a9a6c46bd2e609fcddde6fb8d2a",
    ),
    "geometry_msgs/msg/TwistStamped": (
        geometry_msgs.TwistStamped,
        "RIHS01_5f0fcd4f81d5d06ad9b4c4c63e3ea51b82d6ae4d0558f1d475229b1121db6f64",
    ),
    "geometry_msgs/msg/TwistWithCovariance": (
        geometry_msgs.TwistWithCovariance,
        "RIHS01_49f574f033f095d8b6cd1beaca5ca7925e296e84af1716d16c89d38b059c8c18",
    ),
    "geometry_msgs/msg/Accel": (
        geometry_msgs.Accel,
        "RIHS01_dc448243ded9b1fcbcca24aba0c22f013dae06c354ba2d849571c0a2a3f57ca0",
    ),
    "geometry_msgs/msg/Wrench": (
        geometry_msgs.Wrench,
        "RIHS01_018e8519d57c16adbe97c9fe1460ef21fec7e31bc541de3d653a35895677ce52",
    ),
    "geometry_msgs/msg/WrenchStamped": (
        geometry_msgs.WrenchStamped,
        "RIHS01_8dc3deaf06b2ab281f9f9a742a8961c328ca7cec16e3fd6586d3a5c83fa78f77",
    ),
    "geometry_msgs/msg/Transform": (
        geometry_msgs.Transform,
        "RIHS01_beb83fbe698636351461f6f35d1abb20010c43d55374d81bd041f1ba2581fddc",
    ),
    "geometry_msgs/msg/TransformStamped": (
        geometry_msgs.TransformStamped,
        "RIHS01_0a241f87d04668d94099cbb5ba11691d5ad32c2f29682e4eb5653424bd275206",
    ),
    "sensor_msgs/msg/LaserScan": (
        sensor_msgs.LaserScan,
        "RIHS01_64c191398013af96509d518dac71d5164f9382553fce5c1f8cca5be7924bd828",
    ),
    "sensor_msgs/msg/Imu": (
        sensor_msgs.Imu,
        "RIHS01_7d9a00ff131080897a5ec7e26e315954b8eae3353c3f995c55faf71574000b5b",
    ),
    "sensor_msgs/msg/JointState": (
        sensor_msgs.JointState,
        "RIHS01_a13ee3a330e346c9d87b5aa18d24e11690752bd33a0350f11c5882bc9179260e",
    ),
    "sensor_msgs/msg/BatteryState": (
        sensor_msgs.BatteryState,
        "RIHS01_4bee5dfce981c98faa6828b868307a0a73f992ed0789f374ee96c8f840e69741",
    ),
    "sensor_msgs/msg/Range": (
        sensor_msgs.Range,
        "RIHS01_b42b62562e93cbfe9d42b82fe5994dfa3d63d7d5c90a317981703f7388adff3a",
    ),
    "sensor_msgs/msg/Temperature": (
        sensor_msgs.Temperature,
        "RIHS01_72514a14126ab9f8a9abec974c78e5610a367b59db5da355ff1fb982d5bad4b8",
    ),
    "sensor_msgs/msg/RelativeHumidity": (
        sensor_msgs.RelativeHumidity,
        "RIHS01_8687c99b4fb393cb2e545e407b5ea7fd0b5d8960bcd849a0f86c544740138839",
    ),
    "sensor_msgs/msg/FluidPressure": (
        sensor_msgs.FluidPressure,
        "RIHS01_22dfb2b145a0bd5a31a1ac3882a1b32148b51d9b2f3bab250290d66f3595bc32",
    ),
    "sensor_msgs/msg/Illuminance": (
        sensor_msgs.Illuminance,
        "RIHS01_b954b25f452fcf81a91c9c2a7e3b3fd85c4c873d452aecb3cfd8fd1da732a22d",
    ),
    "sensor_msgs/msg/MagneticField": (
        sensor_msgs.MagneticField,
        "RIHS01_e80f32f56a20486c9923008fc1a1db07bbb273cbbf6a5b3bfa00835ee00e4dff",
    ),
    "sensor_msgs/msg/NavSatStatus": (
        sensor_msgs.NavSatStatus,
        "RIHS01_d1ed3befa628e09571bd273b888ba1c1fd187c9a5e0006b385d7e5e9095a3204",
    ),
    "sensor_msgs/msg/NavSatFix": (
        sensor_msgs.NavSatFix,
        "RIHS01_62223ab3fe210a15976021da7afddc9e200dc9ec75231c1b6a557fc598a65404",
    ),
    "sensor_msgs/msg/Joy": (
        sensor_msgs.Joy,
        "RIHS01_0d356c79cad3401e35ffeb75a96a96e08be3ef896b8b83841d73e890989372c5",
    ),
    "nav_msgs/msg/Odometry": (
        nav_msgs.Odometry,
        "RIHS01_3cc97dc7fb7502f8714462c526d369e35b603cfc34d946e3f2eda2766dfec6e0",
    ),
    "ackermann_msgs/msg/AckermannDrive": (
        ackermann_msgs.AckermannDrive,
        "RIHS01_acf287a224a947dd1b0b87d6d76cdb73f497b0237b8fc73be2173b2ebbb82c99",
    ),
    "ackermann_msgs/msg/AckermannDriveStamped": (
        ackermann_msgs.AckermannDriveStamped,
        "RIHS01_48ca7612a08d3bb72744fd98b71b7cf2ea24c6ad50fa4e1aa0bbad963c90d8cf",
    ),
    "trajectory_msgs/msg/JointTrajectoryPoint": (
        trajectory_msgs.JointTrajectoryPoint,
        "RIHS01_de8907036d8bd45aac6f30cc9044a3d4a329c42cbf719aff7d95a584cfa532d7",
    ),
    "trajectory_msgs/msg/JointTrajectory": (
        trajectory_msgs.JointTrajectory,
        "RIHS01_179b33eba59d676f6d967ac71fe35e7ca2f64b2f3928f4a018cec115e213796e",
    ),
    "diagnostic_msgs/msg/KeyValue": (
        diagnostic_msgs.KeyValue,
        "RIHS01_d68081eaa540288c5440753baecef0c4e16e81a5f78ad68902ded5100413bb42",
    ),
    "diagnostic_msgs/msg/DiagnosticStatus": (
        diagnostic_msgs.DiagnosticStatus,
        "RIHS01_b0e3e692ea2d54a8af2f4ef1930e81556a2db55216b771f8a7d2724ed47bf0e4",
    ),
    "diagnostic_msgs/msg/DiagnosticArray": (
        diagnostic_msgs.DiagnosticArray,
        "RIHS01_5a8a36efb05fb25070fa0fb3810290c0e6cd4862b54a8fb975a1ee8dc55a333e",
    ),
}
