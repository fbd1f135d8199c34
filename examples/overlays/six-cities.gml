# Six cities and the lines between them: a graph with positions, which give latencies, and without
# capacities, which the command's --rate or a scenario's [graph] gives.
#
#     anabranch plan examples/overlays/six-cities.gml --rate 20e6..155e6
graph [
  node [ id 0 label "Lisbon" Latitude 38.7 Longitude -9.1 ]
  node [ id 1 label "Madrid" Latitude 40.4 Longitude -3.7 ]
  node [ id 2 label "Paris" Latitude 48.9 Longitude 2.4 ]
  node [ id 3 label "Milan" Latitude 45.5 Longitude 9.2 ]
  node [ id 4 label "Berlin" Latitude 52.5 Longitude 13.4 ]
  node [ id 5 label "Warsaw" Latitude 52.2 Longitude 21.0 ]
  edge [ source 0 target 1 ]
  edge [ source 0 target 2 ]
  edge [ source 1 target 2 ]
  edge [ source 1 target 3 ]
  edge [ source 2 target 3 ]
  edge [ source 2 target 4 ]
  edge [ source 3 target 4 ]
  edge [ source 3 target 5 ]
  edge [ source 4 target 5 ]
]
