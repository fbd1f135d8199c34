from anabranch_lab.tasks._names import unknown


def test_a_name_like_no_other_gets_the_list_alone():
    assert unknown("task", "zzz", ["digits", "mnist"]) == "no task 'zzz' (known: digits, mnist)"
